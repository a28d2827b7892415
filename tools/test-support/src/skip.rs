//! Tests that need something this machine lacks: each is named, and none is skipped where it is required.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The environment variable with the file that lists skipped tests: a line each, `skipped`, crate and test, what and
/// why, separated by tabs. `./check` sets it, and prints the list at its end.
///
/// `compiler_or_skip` of `tandem-device` writes the same lines: a crate that is published cannot depend on this one.
pub const LIST_VARIABLE: &str = "TANDEM_SKIPPED_TESTS";

/// Reports that the current test does not test `what`, because of `why`: on stderr, and in the file of [`LIST_VARIABLE`].
///
/// # Panics
///
/// If the environment variable `required_by` is 1.
#[track_caller]
pub fn skip(required_by: &str, what: &str, why: &str) {
    if let Some(failure) = failure(std::env::var_os(required_by).as_deref(), what, why) {
        panic!("{required_by}=1, but {failure}");
    }
    // Cargo names the crate. The test harness gives the thread the name of the test, except with --test-threads=1.
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let thread = std::thread::current();
    let test = format!("{}: {}", package.trim_start_matches("tandem-"), thread.name().unwrap_or("?"));
    report(std::env::var_os(LIST_VARIABLE).as_deref(), &test, what, why);
}

/// The message of the failure, if the test is required.
fn failure(required: Option<&OsStr>, what: &str, why: &str) -> Option<String> {
    required.is_some_and(|value| value == "1").then(|| format!("{what} is not tested: {why}"))
}

fn report(list: Option<&OsStr>, test: &str, what: &str, why: &str) {
    // Not through the print macros, whose output the test harness captures.
    let _ = writeln!(std::io::stderr(), "\n!!! SKIPPED {test}: {what} ({why})\n");
    let Some(list) = list else { return };
    let line = [test, what, why].map(|part| part.replace(['\t', '\n'], " ")).join("\t");
    let file = OpenOptions::new().create(true).append(true).open(list);
    // One write call, so that lines of parallel tests do not mix.
    let written = file.and_then(|mut file| file.write_all(format!("skipped\t{line}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("{LIST_VARIABLE}: {error}: {}", list.display()));
}

/// The folder of a recorded voice that lies beside the repository on some machines. Without it, `what` is skipped, unless
/// `TANDEM_REQUIRE_VOICE=1`.
#[track_caller]
pub fn real_voice(what: &str) -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let folder = repository.parent()?.join("shared/data/kathleen_en");
    if folder.is_dir() {
        return Some(folder);
    }
    skip("TANDEM_REQUIRE_VOICE", what, "no recorded voice beside the repository");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_is_a_line_of_the_list() {
        let list = std::env::temp_dir().join(format!("tandem-skipped-{}", std::process::id()));
        report(Some(list.as_os_str()), "this_test", "two\nlines", "a\ttab");
        report(Some(list.as_os_str()), "that_test", "what", "why");
        let text = std::fs::read_to_string(&list);
        let _ = std::fs::remove_file(&list);
        assert_eq!(text.ok().as_deref(), Some("skipped\tthis_test\ttwo lines\ta tab\nskipped\tthat_test\twhat\twhy\n"));
    }

    #[test]
    fn a_required_test_fails_instead() {
        let failure = |value: Option<&str>| failure(value.map(OsStr::new), "Python", "it is not installed");
        assert_eq!(failure(Some("1")).as_deref(), Some("Python is not tested: it is not installed"));
        assert_eq!((failure(None), failure(Some("0"))), (None, None));
    }
}
