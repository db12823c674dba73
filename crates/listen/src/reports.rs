//! Reports of the laboratory: folders with a `report.html`, shown as they are and never followed out of their directory.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde_json::{Value, json};

/// The page of a folder.
const PAGE: &str = "report.html";
/// Folders listed.
const MOST: usize = 200;
/// Bytes of a page.
const MOST_BYTES: u64 = 16 << 20;
/// Such a page has its own style and pictures in it, and no script: none would run.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; sandbox";

/// Where reports are.
#[derive(Debug, Clone, clap::Args)]
pub struct ReportsArgs {
    /// Show the reports in this directory: folders that `lab run --out` and `tenants --out` wrote. Without it, those in `reports`
    /// in the state directory.
    #[arg(long, value_name = "DIR")]
    reports: Option<PathBuf>,
}

impl ReportsArgs {
    /// Whether one is named.
    pub fn is_given(&self) -> bool {
        self.reports.is_some()
    }

    /// The directory, whether it is there or not.
    pub fn directory(&self, state_dir: &Path) -> PathBuf {
        self.reports.clone().unwrap_or_else(|| state_dir.join("reports"))
    }
}

/// The list: `evenkeel.reports/v1`. A directory that is not there has none.
pub fn list(directory: &Path) -> Result<Value, String> {
    let document = |reports: Vec<Value>, more: bool| {
        json!({ "schema": "evenkeel.reports/v1", "directory": directory.display().to_string(),
                "reports": reports, "more": more })
    };
    let told = |error: std::io::Error| format!("{}: {error}", directory.display());
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(document(Vec::new(), false)),
        entries => entries.map_err(told)?,
    };
    let root = open(directory).map_err(told)?;
    let mut found = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        // A name that is no text has no address.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok((_, about)) = page(&root, &name) else { continue };
        let written = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        found.push((written.map(|at| at.as_millis() as u64), name, about.len()));
    }
    // The newest first.
    found.sort_by(|a, b| b.cmp(a));
    let more = found.len() > MOST;
    let rows = found.into_iter().take(MOST);
    let rows = rows.map(|(at, name, bytes)| json!({ "name": name, "written_ms": at, "bytes": bytes }));
    Ok(document(rows.collect(), more))
}

/// The page of a folder.
pub fn show(directory: &Path, name: &str) -> Response {
    let read = || -> std::io::Result<Vec<u8>> {
        let (file, _) = page(&open(directory)?, name)?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => {
            let headers = [
                (CONTENT_TYPE, "text/html; charset=utf-8"),
                (CONTENT_SECURITY_POLICY, POLICY),
                (X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (REFERRER_POLICY, "no-referrer"),
            ];
            (headers, bytes).into_response()
        }
        Err(_) => (StatusCode::NOT_FOUND, "no such report\n").into_response(),
    }
}

fn open(directory: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(directory, flags, Mode::empty())?)
}

/// Opens the page of a folder: a plain file, by no link, and nowhere else than in the directory.
fn page(root: &OwnedFd, name: &str) -> std::io::Result<(File, std::fs::Metadata)> {
    let refused = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    if name.contains('/') || name.starts_with('.') {
        return Err(refused());
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // A pipe of that name is not waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::openat2(root, format!("{name}/{PAGE}"), flags, Mode::empty(), resolve)?;
    let file = File::from(file);
    let about = file.metadata()?;
    if !about.is_file() || about.len() > MOST_BYTES {
        return Err(refused());
    }
    Ok((file, about))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_pages_are_listed_and_shown_and_no_link_leads_out() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::create_dir(outside.path().join("secret")).unwrap();
        std::fs::write(outside.path().join("secret").join(PAGE), "secret").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["one two", "file-link", "pipe", "empty", ".hidden"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("one two").join(PAGE), "<h1>x</h1>").unwrap();
        std::fs::write(at(".hidden").join(PAGE), "hidden").unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret").join(PAGE), at("file-link").join(PAGE))
            .unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), at("folder-link")).unwrap();
        let fifo = at("pipe").join(PAGE);
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let listed = list(dir.path()).unwrap();
        let names: Vec<_> = listed["reports"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["one two"]);
        let status = |name: &str| show(dir.path(), name).status().as_u16();
        assert_eq!(status("one two"), 200);
        for name in [
            "file-link",
            "folder-link",
            "pipe",
            "empty",
            ".hidden",
            "..",
            "../secret",
            "/etc",
            "one two/..",
            "",
        ] {
            assert_eq!(status(name), 404, "{name}");
        }
        let policy =
            show(dir.path(), "one two").headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(
            policy.contains("default-src 'none'")
                && policy.contains("sandbox")
                && !policy.contains("script-src")
        );
        assert_eq!(list(&at("nowhere")).unwrap()["reports"], json!([]));
    }
}
