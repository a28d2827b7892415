//! Outputs never replace a file that Tandem did not write, nor a file of a corpus or of another run.
//!
//! Checked before anything is created. `--overwrite` replaces a file all the same, except for the inputs of the command
//! itself.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use tandem_checkpoint::RUN_FILE;
use tandem_corpus::{EXTENSIONS, LISTS};
use tandem_files::open_regular;
use tandem_plan::setting::Id;
use tandem_storage::{ObjectLocation, Storage};

use crate::args::PlanArgs;
use crate::exit::Exit;

/// Bytes that tell what a file is.
const HEAD_BYTES: u64 = 4096;

/// What an output file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputKind {
    RunLog,
    Trace,
    Audio,
    Features,
}

/// What an output may replace.
#[derive(Debug, Default)]
pub(crate) struct OutputGuard {
    /// `--overwrite`
    pub(crate) overwrite: bool,
    /// Files that the command reads.
    pub(crate) inputs: Vec<PathBuf>,
    /// The run folder of the command. Its files may be replaced.
    pub(crate) own_run: Option<PathBuf>,
}

impl OutputKind {
    fn name(self) -> &'static str {
        match self {
            OutputKind::RunLog => "a run log",
            OutputKind::Trace => "a trace",
            OutputKind::Audio => "an audio file",
            OutputKind::Features => "an array of features",
        }
    }

    /// Whether a file that begins with `head` is one that Tandem could have written for this output.
    fn is_ours(self, head: &[u8]) -> bool {
        let text = String::from_utf8_lossy(head);
        match self {
            OutputKind::RunLog => text.starts_with("{\"v\":") && text.contains("\"event\":"),
            OutputKind::Trace => text.starts_with("[\n") && (head.len() == 2 || text.contains("\"ph\":")),
            OutputKind::Audio => [&b"RIFF"[..], b"fLaC", b"OggS", b"ID3"].iter().any(|magic| head.starts_with(magic)),
            OutputKind::Features => head.starts_with(b"\x93NUMPY"),
        }
    }
}

impl OutputGuard {
    /// The guard of a command with the settings of a run.
    pub(crate) fn of(args: &PlanArgs) -> OutputGuard {
        let path = |id| args.settings.text(id).map(PathBuf::from);
        let data = [Id::TrainData, Id::ValData].into_iter().flat_map(|id| args.settings.texts(id));
        let mut inputs: Vec<PathBuf> = data.flat_map(|name| local_files(&name)).collect();
        inputs.extend(path(Id::ExcludeIds).into_iter().chain(args.config.clone()));
        OutputGuard { overwrite: args.overwrite, inputs, own_run: path(Id::CheckpointDir) }
    }

    /// Refuses to replace the file that `flag` names, if it is not one that may be replaced.
    pub(crate) fn check(&self, flag: &str, path: &Path, kind: OutputKind) -> Result<(), Exit> {
        let Ok(resolved) = fs::canonicalize(path) else { return Ok(()) };
        // A pipe and a device keep what was written to them. An empty file has nothing to lose.
        if fs::metadata(&resolved).is_ok_and(|found| !found.is_file() || found.len() == 0) {
            return Ok(());
        }
        let refused =
            |why: &str, advice: &str| Err(Exit::Usage(format!("❌ {flag}: {why}: {}\n   {advice}", path.display())));
        if self.inputs.iter().any(|input| fs::canonicalize(input).is_ok_and(|input| input == resolved)) {
            return refused("this command reads the file", "Give another name");
        }
        if self.overwrite {
            return Ok(());
        }
        let advice = "Give another name, or add --overwrite to replace it";
        if is_in_corpus(&resolved) {
            return refused("the file belongs to a corpus", advice);
        }
        if let Some(run) = self.other_run(&resolved) {
            return refused(&format!("the file belongs to the run in {}", run.display()), advice);
        }
        let mut head = Vec::new();
        let read = open_regular(&resolved).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
        if read.is_err() || !kind.is_ours(&head) {
            return refused(&format!("the file exists and is not {}", kind.name()), advice);
        }
        Ok(())
    }

    /// The run folder that the file is in, unless it is that of the command.
    fn other_run(&self, file: &Path) -> Option<PathBuf> {
        let run = file.ancestors().skip(1).find(|folder| folder.join(RUN_FILE).is_file())?;
        let own = self.own_run.as_ref().and_then(|own| fs::canonicalize(own).ok());
        (own.as_deref() != Some(run)).then(|| run.to_owned())
    }
}

/// The files of this machine that a name of data stands for. What is in an object store is no output, and is not asked for.
fn local_files(name: &str) -> Vec<PathBuf> {
    let is_local = ObjectLocation::parse(name).is_ok_and(|location| location.path().is_some());
    // A pattern that stands for nothing is refused when the corpus is opened.
    let found = if is_local { Storage::default().expand(name).unwrap_or_default() } else { Vec::new() };
    found.iter().filter_map(|location| location.path().map(Path::to_owned)).collect()
}

/// Whether the file is a list of a corpus, or a recording below one.
fn is_in_corpus(file: &Path) -> bool {
    if file.file_name().is_some_and(|name| LISTS.iter().any(|list| name == *list)) {
        return true;
    }
    let is_recording = file.extension().is_some_and(|ending| EXTENSIONS.iter().any(|known| ending == *known));
    let has_list = |folder: &Path| LISTS.iter().any(|name| folder.join(name).is_file());
    is_recording && file.ancestors().skip(1).take(3).any(has_list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &OutputGuard, path: &Path, kind: OutputKind) -> String {
        match guard.check("--out", path, kind) {
            Ok(()) => String::new(),
            Err(Exit::Usage(text)) => text,
            Err(_) => panic!("another kind of exit"),
        }
    }

    #[test]
    fn every_file_that_a_pattern_stands_for_is_an_input() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a-0.tar", "a-1.tar", "b.tar"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let found = |prefix: &str, name: &str| -> Vec<String> {
            let files = local_files(&format!("{prefix}{}/{name}", folder.path().display()));
            files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(found("", "a-*.tar"), ["a-0.tar", "a-1.tar"]);
        assert_eq!(found("", "a-{0..1}.tar"), ["a-0.tar", "a-1.tar"]);
        assert_eq!(found("file://", "b.tar"), ["b.tar"]);
        assert_eq!(found("", "c-*.tar"), [""; 0]);
        assert_eq!(local_files("s3://bucket/*.tar"), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn only_our_own_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            path
        };
        let guard = OutputGuard::default();
        let allowed = |path: &Path, kind| assert_eq!(check(&guard, path, kind), "", "{}", path.display());
        allowed(&folder.path().join("new"), OutputKind::RunLog);
        allowed(Path::new("/dev/null"), OutputKind::RunLog);
        allowed(&file("empty", b""), OutputKind::Trace);
        allowed(&file("log", b"{\"v\":2,\"seq\":0,\"event\":\"run_started\"}\n"), OutputKind::RunLog);
        allowed(&file("trace", b"[\n{\"ph\":\"M\"}"), OutputKind::Trace);
        allowed(&file("old.wav", b"RIFF...."), OutputKind::Audio);
        let notes = file("notes.txt", b"my notes");
        for kind in [OutputKind::RunLog, OutputKind::Trace, OutputKind::Audio, OutputKind::Features] {
            assert!(check(&guard, &notes, kind).contains("the file exists and is not a"), "{kind:?}");
        }
        file("corpus/metadata.csv", b"a|text");
        for path in [file("corpus/wavs/a.wav", b"RIFF...."), folder.path().join("corpus/metadata.csv")] {
            assert!(check(&guard, &path, OutputKind::Audio).contains("belongs to a corpus"));
        }
        file("run/run.json", b"{}");
        let log = file("run/run.jsonl", b"{\"v\":2,\"event\":\"step\"}");
        assert!(check(&guard, &log, OutputKind::RunLog).contains("belongs to the run in "));
        let own = OutputGuard { own_run: Some(folder.path().join("run")), ..OutputGuard::default() };
        assert_eq!(check(&own, &log, OutputKind::RunLog), "");
        let forced = OutputGuard { overwrite: true, inputs: vec![log.clone()], own_run: None };
        assert_eq!(check(&forced, &notes, OutputKind::Trace), "");
        assert!(check(&forced, &log, OutputKind::RunLog).contains("this command reads the file"));
    }
}
