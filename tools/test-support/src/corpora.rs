//! Corpora as the original tools write them, and a real S3 server: the scripts of `tools/corpora`, for Rust tests.
//!
//! `TANDEM_PYTHON` names the interpreter; the default is `python3`. If it lacks a package of
//! `tools/corpora/requirements.txt`, tests are skipped, unless `TANDEM_REQUIRE_CORPORA=1`.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::skip;

/// The environment variable that requires what this file needs.
const REQUIRED_BY: &str = "TANDEM_REQUIRE_CORPORA";

/// What the corpora depend on, besides the source.
const SCRIPTS: [&str; 4] = ["make_corpora.py", "read_back.py", "source.py", "requirements.txt"];

/// The packages that write corpora and read them back, as Python imports them.
const CORPUS_PACKAGES: [&str; 6] = ["datasets", "numpy", "pandas", "pyarrow", "soundfile", "webdataset"];

/// The packages of the S3 server.
const SERVER_PACKAGES: [&str; 4] = ["boto3", "flask", "flask_cors", "moto"];

/// The folder of a corpus that is there in Lhotse's formats, and is an LJSpeech folder too.
pub fn lhotse_fixtures() -> PathBuf {
    repository().join("crates/corpus/tests/data/lhotse")
}

/// The folder with the corpus of the LJSpeech folder `source` in every format of `tools/corpora/README.md`, and as LJSpeech
/// in `ljspeech`. Tests must not change it.
///
/// It is generated once per machine and source, and read back with the original libraries; other threads and processes
/// wait for that. Without the packages `what` is skipped.
///
/// # Panics
///
/// If the corpora cannot be generated, or if packages are missing and `TANDEM_REQUIRE_CORPORA=1`.
#[track_caller]
pub fn corpora(source: &Path, what: &str) -> Option<PathBuf> {
    match generate(source, &repository().join("target/corpora"), &python()) {
        Ok((folder, _)) => Some(folder),
        Err(Obstacle::Missing(why)) => {
            skip(REQUIRED_BY, what, &why);
            None
        }
        Err(Obstacle::Failed(why)) => panic!("corpora of {}: {why}", source.display()),
    }
}

/// A server that speaks S3: moto. It ends when this is dropped, or when this process ends.
pub struct S3Server {
    process: Child,
    endpoint: String,
}

impl S3Server {
    /// The bucket with the objects.
    pub const BUCKET: &'static str = "voices";

    /// Serves the files of `folder` to clients with credentials, and waits `latency` before each answer. Others are
    /// refused with 403 when they read an object. Objects are copies: later changes of the files are not seen. Without the
    /// packages `what` is skipped.
    ///
    /// # Panics
    ///
    /// If it does not start, or if packages are missing and `TANDEM_REQUIRE_CORPORA=1`.
    #[track_caller]
    pub fn start(folder: &Path, latency: Duration, what: &str) -> Option<S3Server> {
        S3Server::start_with(folder, latency, what, &[])
    }

    /// As [`S3Server::start`], for clients without credentials too.
    ///
    /// # Panics
    ///
    /// As [`S3Server::start`].
    #[track_caller]
    pub fn start_public(folder: &Path, latency: Duration, what: &str) -> Option<S3Server> {
        S3Server::start_with(folder, latency, what, &["--public"])
    }

    #[track_caller]
    fn start_with(folder: &Path, latency: Duration, what: &str, more: &[&str]) -> Option<S3Server> {
        let python = python();
        if let Err(why) = find_packages(&python, &SERVER_PACKAGES) {
            skip(REQUIRED_BY, what, &why);
            return None;
        }
        let mut command = script(&python, "serve_s3.py");
        command.arg(folder).args(["--bucket", S3Server::BUCKET]).args(more);
        command.arg("--latency-ms").arg((latency.as_secs_f64() * 1e3).to_string());
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let process = started.unwrap_or_else(|error| panic!("{python}: {error}"));
        // Owned from here on, so that a panic ends the process.
        let mut server = S3Server { process, endpoint: String::new() };
        let mut line = String::new();
        if let Some(stdout) = server.process.stdout.take() {
            // An error leaves the line empty.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        server.endpoint = line.trim_end().to_owned();
        assert!(server.endpoint.starts_with("http://"), "serve_s3.py did not start: its output is above");
        Some(server)
    }

    /// `http://127.0.0.1:port`, without a slash at its end.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// `s3://bucket/key` of the file `key` of the folder.
    pub fn url(&self, key: &str) -> String {
        format!("s3://{}/{key}", S3Server::BUCKET)
    }

    /// The environment variables, names and values, with which a client reaches this server.
    pub fn variables(&self) -> Vec<(String, String)> {
        let credentials = [("AWS_ACCESS_KEY_ID", "testing"), ("AWS_SECRET_ACCESS_KEY", "testing")];
        let credentials = credentials.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.variables_without_credentials().into_iter().chain(credentials).collect()
    }

    /// The same for a client without credentials.
    pub fn variables_without_credentials(&self) -> Vec<(String, String)> {
        let pairs = [("AWS_ENDPOINT_URL", self.endpoint()), ("AWS_REGION", "us-east-1"), ("AWS_ALLOW_HTTP", "true")];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // It holds nothing that must be written, so it need not end by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Why there are no corpora.
#[derive(Debug)]
enum Obstacle {
    /// Something is not installed.
    Missing(String),
    /// Something is wrong.
    Failed(String),
}

impl From<io::Error> for Obstacle {
    fn from(error: io::Error) -> Obstacle {
        Obstacle::Failed(error.to_string())
    }
}

/// Generates the corpora in a folder of `base`, unless they are there. Returns the folder, and whether it is new.
fn generate(source: &Path, base: &Path, python: &str) -> Result<(PathBuf, bool), Obstacle> {
    let key = key(source)?;
    let folder = base.join(&key);
    fs::create_dir_all(base)?;
    // In place under a lock, not moved into place: the corpora have absolute paths of recordings. The lock ends with
    // the process.
    let lock = File::create(base.join(format!("{key}.lock")))?;
    lock.lock()?;
    let complete = folder.join("complete");
    if complete.exists() {
        return Ok((folder, false));
    }
    find_packages(python, &CORPUS_PACKAGES).map_err(Obstacle::Missing)?;
    if folder.exists() {
        // Of a process that was killed.
        fs::remove_dir_all(&folder)?;
    }
    let copy = folder.join("ljspeech");
    for path in files(source)? {
        let to = copy.join(path.strip_prefix(source).unwrap_or(&path));
        fs::create_dir_all(to.parent().unwrap_or(&copy))?;
        fs::copy(&path, &to)?;
    }
    for name in ["make_corpora.py", "read_back.py"] {
        run(script(python, name).arg(&copy).arg(&folder)).map_err(Obstacle::Failed)?;
    }
    fs::write(complete, "")?;
    Ok((folder, true))
}

/// A name for the contents of scripts and source. It need not be the same on another machine.
fn key(source: &Path) -> io::Result<String> {
    let mut hasher = DefaultHasher::new();
    let mut add = |name: &Path, path: &Path| -> io::Result<()> {
        let bytes = fs::read(path)?;
        // With lengths, so that bytes cannot move from one file to the next.
        for part in [name.as_os_str().as_encoded_bytes(), &bytes] {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
        Ok(())
    };
    for name in SCRIPTS {
        add(Path::new(name), &scripts().join(name))?;
    }
    for path in files(source)? {
        add(path.strip_prefix(source).unwrap_or(&path), &path)?;
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// `metadata.csv` and the recordings in `wavs`, in order.
fn files(source: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(source.join("wavs"))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    files.push(source.join("metadata.csv"));
    files.sort();
    Ok(files)
}

/// Whether Python has all of `packages`; if not, which are missing and what to type. Nothing is imported, which would take
/// seconds.
fn find_packages(python: &str, packages: &[&str]) -> Result<(), String> {
    let code =
        "import sys, importlib.util as util\nprint(*[name for name in sys.argv[1:] if not util.find_spec(name)])";
    let missing = run(Command::new(python).args(["-c", code]).args(packages))?;
    let missing = missing.trim();
    let install = "pip install -r tools/corpora/requirements.txt";
    if missing.is_empty() { Ok(()) } else { Err(format!("{python} lacks {missing}: {python} -m {install}")) }
}

/// Runs a command to its end. Returns what it prints, or why it failed.
fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!("{program}: {}: {}", output.status, text(&output.stderr).trim_end()))
}

fn script(python: &str, name: &str) -> Command {
    let mut command = Command::new(python);
    // The repository stays as it is, and nothing is asked from the network.
    command.arg("-B").arg(scripts().join(name)).env("HF_HUB_OFFLINE", "1");
    command
}

fn python() -> String {
    std::env::var("TANDEM_PYTHON").unwrap_or_else(|_| "python3".into())
}

fn scripts() -> PathBuf {
    repository().join("tools/corpora")
}

fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or_else(|| panic!("{} is not in the repository", here.display()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    /// An empty folder.
    fn empty(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tandem-corpora-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// The interpreter, if it has the packages.
    fn python_with(packages: &[&str], what: &str) -> Option<String> {
        let python = python();
        match find_packages(&python, packages) {
            Ok(()) => Some(python),
            Err(why) => {
                skip(REQUIRED_BY, what, &why);
                None
            }
        }
    }

    #[test]
    fn corpora_are_generated_once_and_again_if_that_was_cut_short() {
        let Some(python) = python_with(&CORPUS_PACKAGES, "generating corpora") else { return };
        let (source, base) = (lhotse_fixtures(), empty("once"));
        let ask = || generate(&source, &base, &python).unwrap();
        let asked: Vec<(PathBuf, bool)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(asked.iter().filter(|(_, is_new)| *is_new).count(), 1);
        let folder = &asked[0].0;
        assert!(asked.iter().all(|(other, _)| other == folder));
        assert!(folder.join("webdataset_json/shard-000000.tar").exists() && folder.join("f5tts/raw.arrow").exists());
        let copied = fs::read(folder.join("ljspeech/metadata.csv")).unwrap();
        assert_eq!(copied, fs::read(source.join("metadata.csv")).unwrap());

        fs::remove_file(folder.join("complete")).unwrap();
        fs::write(folder.join("left-over"), "").unwrap();
        assert!(ask().1 && !folder.join("left-over").exists());
        assert!(!ask().1);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn another_source_has_another_key() {
        let source = empty("key");
        fs::create_dir(source.join("wavs")).unwrap();
        let write = |name: &str, text: &str| fs::write(source.join(name), text).unwrap();
        write("metadata.csv", "a|text");
        write("wavs/a.wav", "samples");
        let keys =
            [("wavs/a.wav", "samples"), ("wavs/a.wav", "sample"), ("metadata.csv", "a|other")].map(|(name, text)| {
                write(name, text);
                key(&source).unwrap()
            });
        fs::remove_dir_all(&source).unwrap();
        assert!(keys[0] != keys[1] && keys[1] != keys[2], "{keys:?}");
    }

    #[test]
    fn a_missing_package_is_named() {
        let nowhere = find_packages("no-such-python", &[]).unwrap_err();
        assert!(nowhere.starts_with("no-such-python: "), "{nowhere}");
        let Some(python) = python_with(&[], "missing packages") else { return };
        let why = find_packages(&python, &["sys", "no_such_package"]).unwrap_err();
        assert!(why.contains(" lacks no_such_package: "), "{why}");
    }

    /// The answer to a request without credentials; nothing if nobody listens.
    fn ask(endpoint: &str, path: &str, range: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(endpoint.trim_start_matches("http://")) else { return String::new() };
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nRange: bytes={range}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn an_s3_server_serves_a_folder_until_it_is_dropped() {
        let folder = empty("s3");
        fs::create_dir(folder.join("inner")).unwrap();
        fs::write(folder.join("inner/key"), "content").unwrap();
        let what = "an S3 server";
        let Some(server) = S3Server::start_public(&folder, Duration::ZERO, what) else { return };
        let Some(private) = S3Server::start(&folder, Duration::from_millis(1), what) else { return };
        fs::remove_dir_all(&folder).unwrap();

        let listed = ask(server.endpoint(), "/voices?list-type=2", "0-");
        assert!(listed.contains("<Key>inner/key</Key>") && listed.contains("<Size>7</Size>"), "{listed}");
        let part = ask(server.endpoint(), "/voices/inner/key", "3-4");
        assert!(part.starts_with("HTTP/1.1 206 ") && part.ends_with("\r\n\r\nte"), "{part}");
        assert!(ask(private.endpoint(), "/voices/inner/key", "3-4").starts_with("HTTP/1.1 403 "));
        assert_eq!(server.url("inner/key"), "s3://voices/inner/key");
        assert!(server.variables().contains(&("AWS_ENDPOINT_URL".into(), server.endpoint().into())));

        let endpoint = server.endpoint().to_owned();
        drop(server);
        assert_eq!(ask(&endpoint, "/voices/inner/key", "3-4"), "");
    }
}
