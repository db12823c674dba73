//! The state directory: one at a time, what is written and read again, and what is refused.

use super::*;

#[test]
fn one_at_a_time_and_the_first_is_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(FileMedium::holder(dir.path()).unwrap().is_none());
    let first = FileMedium::open(dir.path()).unwrap();
    let error = FileMedium::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    assert_eq!(FileMedium::holder(dir.path()).unwrap().unwrap().unwrap().pid, std::process::id());
    drop(first);
    assert!(FileMedium::holder(dir.path()).unwrap().is_none());
    FileMedium::open(dir.path()).unwrap();
}

#[test]
fn a_child_that_still_has_the_file_open_does_not_keep_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let medium = FileMedium::open(dir.path()).unwrap();
    let childs = medium._lock.0.try_clone().unwrap();
    drop(medium);
    assert!(FileMedium::holder(dir.path()).unwrap().is_none());
    FileMedium::open(dir.path()).unwrap();
    drop(childs);
}

#[test]
fn replaced_appended_set_aside_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut medium = FileMedium::open(dir.path()).unwrap();
    assert_eq!(medium.load().unwrap(), None);
    medium.replace(b"one\n", Survives::Kill).unwrap();
    medium.append(b"two\n", Survives::Boot).unwrap();
    assert_eq!(medium.load().unwrap().unwrap(), b"one\ntwo\n");
    medium.replace(b"three\n", Survives::Boot).unwrap();
    medium.append(b"four\n", Survives::Kill).unwrap();
    assert_eq!(medium.load().unwrap().unwrap(), b"three\nfour\n");
    let first = medium.set_aside(Some(b"rest\n")).unwrap();
    assert_eq!(std::fs::read(&first).unwrap(), b"three\nfour\n");
    medium.append(b"more\n", Survives::Kill).unwrap();
    assert_eq!(medium.load().unwrap().unwrap(), b"rest\nmore\n");
    let second = medium.set_aside(None).unwrap();
    assert_eq!(std::fs::read(&second).unwrap(), b"rest\nmore\n");
    assert!(first != second && second.to_str().unwrap().contains("/journal.corrupt-"));
    assert_eq!(medium.load().unwrap(), None);
    medium.remove().unwrap();
}

#[test]
fn where_nothing_can_be_put_in_its_place_the_journal_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut medium = FileMedium::open(dir.path()).unwrap();
    medium.replace(b"one\n", Survives::Kill).unwrap();
    // A directory has the name under which it would be written.
    std::fs::create_dir(dir.path().join("journal.new")).unwrap();
    medium.set_aside(Some(b"rest\n")).unwrap_err();
    assert_eq!(medium.load().unwrap().unwrap(), b"one\n");
}

#[test]
fn a_decision_is_kept_beside_the_journal_and_goes_before_it() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mut medium = FileMedium::open(dir.path()).unwrap();
    assert_eq!(medium.load_decision().unwrap(), None);
    medium.replace(b"one\n", Survives::Kill).unwrap();
    medium.replace_decision(b"first\n").unwrap();
    medium.replace_decision(b"second\n").unwrap();
    medium.append(b"two\n", Survives::Kill).unwrap();
    assert_eq!(medium.load_decision().unwrap().unwrap(), b"second\n");
    assert_eq!(medium.load().unwrap().unwrap(), b"one\ntwo\n");
    let path = dir.path().join("decision");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o622)).unwrap();
    assert!(medium.load_decision().unwrap_err().to_string().contains("by others"));
    medium.remove().unwrap();
    assert_eq!((medium.load_decision().unwrap(), medium.load().unwrap()), (None, None));
}

fn not_ours(dir: &Path) -> String {
    match FileMedium::open(dir) {
        Err(error @ OpenError::NotOurs { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_others_may_have_written_is_refused() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("state");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    FileMedium::open(&dir).unwrap().replace(b"one\n", Survives::Kill).unwrap();
    assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o7777, 0o700);
    for bad in [0o720, 0o702, 0o1777] {
        mode(&dir, bad);
        assert!(check_private(&dir).is_err(), "{bad:o}");
        assert!(not_ours(&dir).contains("by others"), "{bad:o}");
    }
    mode(&dir, 0o755);
    check_private(&dir).unwrap();
    FileMedium::open(&dir).unwrap();
    mode(&dir.join("journal"), 0o666);
    assert!(FileMedium::open(&dir).unwrap().load().unwrap_err().to_string().contains("by others"));
    mode(&dir.join("journal"), 0o600);
    let link = outer.path().join("link");
    symlink(&dir, &link).unwrap();
    assert!(not_ours(&link).contains("symbolic link"));
    if rustix::process::geteuid().is_root() {
        chown(dir.join("journal"), Some(65534), None).unwrap();
        assert!(FileMedium::open(&dir).unwrap().load().unwrap_err().to_string().contains("65534"));
        chown(&dir, Some(65534), None).unwrap();
        assert!(not_ours(&dir).contains("65534"));
    }
}

#[test]
fn links_in_the_state_directory_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("precious");
    std::fs::write(&precious, "data").unwrap();
    let plant = |name: &str| std::os::unix::fs::symlink(&precious, dir.path().join(name)).unwrap();
    plant("journal.new");
    let mut medium = FileMedium::open(dir.path()).unwrap();
    medium.replace(b"one\n", Survives::Kill).unwrap();
    assert_eq!(medium.load().unwrap().unwrap(), b"one\n");
    medium.remove().unwrap();
    plant("journal");
    assert!(medium.load().is_err());
    drop(medium);
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    plant("lock");
    assert!(FileMedium::open(dir.path()).is_err());
    assert_eq!(std::fs::read(&precious).unwrap(), b"data");
}

#[test]
fn dates_are_civil() {
    assert_eq!(utc(0), "1970-01-01T00:00:00Z");
    assert_eq!(utc(951_827_696), "2000-02-29T12:34:56Z");
    assert_eq!(utc(1_798_675_200), "2026-12-31T00:00:00Z");
}
