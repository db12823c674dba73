//! The objects of a published crate are built elsewhere than they are used: they are the same wherever that is.

#[allow(dead_code)]
#[path = "../build.rs"]
mod build;

#[test]
fn objects_are_the_same_wherever_they_are_built() {
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::create_dir(elsewhere.path().join("bpf")).unwrap();
    for file in std::fs::read_dir("bpf").unwrap() {
        let file = file.unwrap().path();
        std::fs::copy(&file, elsewhere.path().join(&file)).unwrap();
    }
    let programs = build::programs().unwrap();
    assert!(programs.len() >= 6, "{programs:?}");
    for stem in programs {
        let object = format!("{stem}.bpf.o");
        let again = elsewhere.path().join(&object);
        build::compile(elsewhere.path(), &stem, &again).unwrap();
        let embedded = std::fs::read(std::path::Path::new(env!("OUT_DIR")).join(&object)).unwrap();
        assert!(std::fs::read(&again).unwrap() == embedded, "{object} differs from the embedded one");
    }
}
