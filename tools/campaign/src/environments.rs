//! Unusual environments: the same bytes, or an error with a documented exit code and a message.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::case::CaseContext;
use crate::command::{CommandSpec, HowEnded, StdoutTarget};
use crate::fixtures::{VARIANTS, last_checkpoint};
use crate::tree;
use crate::verdict::Expectation;

/// A change of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surrounding {
    NoHome,
    HomeIsFile,
    HomeIsMissing,
    NoTemporaryFolder,
    TemporaryFolderIsFile,
    PlainLocale,
    NoLocale,
    Columns,
    ClosedStdin,
    ClosedStdout,
    ClosedStderr,
    AllClosed,
    FullStdout,
    BrokenPipe,
    OpenUmask,
    ClosedUmask,
    FewDescriptors,
    FewProcesses,
    LittleMemory,
    SmallStacks,
    LittleCpuTime,
    NoCoreFile,
    OneCore,
    Nice,
    NoCurrentFolder,
    Nobody,
    NobodyClosedUmask,
    IgnoredSignals,
    ManyVariables,
}

const ALL: [Surrounding; 29] = [
    Surrounding::NoHome,
    Surrounding::HomeIsFile,
    Surrounding::HomeIsMissing,
    Surrounding::NoTemporaryFolder,
    Surrounding::TemporaryFolderIsFile,
    Surrounding::PlainLocale,
    Surrounding::NoLocale,
    Surrounding::Columns,
    Surrounding::ClosedStdin,
    Surrounding::ClosedStdout,
    Surrounding::ClosedStderr,
    Surrounding::AllClosed,
    Surrounding::FullStdout,
    Surrounding::BrokenPipe,
    Surrounding::OpenUmask,
    Surrounding::ClosedUmask,
    Surrounding::FewDescriptors,
    Surrounding::FewProcesses,
    Surrounding::LittleMemory,
    Surrounding::SmallStacks,
    Surrounding::LittleCpuTime,
    Surrounding::NoCoreFile,
    Surrounding::OneCore,
    Surrounding::Nice,
    Surrounding::NoCurrentFolder,
    Surrounding::Nobody,
    Surrounding::NobodyClosedUmask,
    Surrounding::IgnoredSignals,
    Surrounding::ManyVariables,
];

/// A user without rights, for limits that root does not have.
const NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --";

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    case.copy_corpus()?;
    let reference = case.reference(VARIANTS[0])?;
    tree::copy(&last_checkpoint(&reference.run), &case.path("checkpoint"))?;
    fs::copy(reference.run.join("run.jsonl"), case.path("log.jsonl"))?;
    case.write("a-file", "not a folder")?;
    // In turn, so that a short campaign has many of them.
    for offset in 0..4 {
        let at = (case.id.number * 4 + offset + case.campaign.seed) % ALL.len() as u64;
        let surrounding = ALL[at as usize];
        train(case, surrounding)?;
        for _ in 0..3 {
            other_command(case, surrounding)?;
        }
    }
    Ok(())
}

/// Trains: with exit code 0 the bytes are those of the undisturbed run.
fn train(case: &mut CaseContext<'_>, surrounding: Surrounding) -> anyhow::Result<()> {
    case.remove("run");
    let Some((spec, expected)) = surround(case, VARIANTS[0].command(), surrounding) else { return Ok(()) };
    let outcome = case.run_expecting(&spec, &expected)?;
    case.counts.inputs += 1;
    if outcome.ended == HowEnded::Exited(0) && case.path("run").exists() {
        let reference = case.reference(VARIANTS[0])?;
        let failures = case.failures.len();
        case.same_bytes("run", &reference);
        if case.failures.len() > failures {
            case.fail(format!("the bytes differ: {surrounding:?}"));
        }
    }
    Ok(())
}

fn other_command(case: &mut CaseContext<'_>, surrounding: Surrounding) -> anyhow::Result<()> {
    let line = *case.choices.pick(&[
        "plan --mode cpu --train-data corpus",
        "plan --sim 2x24GiB --json",
        "corpus check corpus",
        "corpus check corpus --json",
        "corpus demo --minutes 0.1 -o demo",
        "synthesize --mode cpu --checkpoint checkpoint --text Hello. -o out.wav --overwrite",
        "monitor --once log.jsonl",
        "profile --log log.jsonl",
        "doctor --mode cpu --model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200 --json",
        "validate --mode cpu --model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200",
        "train --help",
        "--version",
        "plan --frobnicate",
    ]);
    case.remove("demo");
    case.remove("out.wav");
    let Some((spec, expected)) = surround(case, CommandSpec::new(line), surrounding) else { return Ok(()) };
    case.run_expecting(&spec, &expected)?;
    case.counts.inputs += 1;
    Ok(())
}

/// The command in its surrounding, and what is right there. None if the surrounding cannot be made here.
fn surround(
    case: &mut CaseContext<'_>,
    spec: CommandSpec,
    surrounding: Surrounding,
) -> Option<(CommandSpec, Expectation)> {
    let inside = |name: &str| case.path(name).display().to_string();
    let silent = Expectation { says_why: false, ..Expectation::default() };
    let usual = Expectation::default();
    let (file, no_home, no_temporary) = (inside("a-file"), inside("no-home/of-it"), inside("no-temporary/folder"));
    Some(match surrounding {
        Surrounding::NoHome => (spec.without_env("HOME"), usual),
        Surrounding::HomeIsFile => (spec.env("HOME", &file), usual),
        Surrounding::HomeIsMissing => (spec.env("HOME", &no_home), usual),
        Surrounding::NoTemporaryFolder => (spec.env("TMPDIR", &no_temporary), usual),
        Surrounding::TemporaryFolderIsFile => (spec.env("TMPDIR", &file), usual),
        Surrounding::PlainLocale => (spec.env("LANG", "C").env("TERM", "dumb"), usual),
        Surrounding::NoLocale => (spec.without_env("LANG"), usual),
        Surrounding::Columns => {
            let columns = *case.choices.pick(&["0", "1", "99999999", "-1", "x", ""]);
            (spec.env("COLUMNS", columns).env("LINES", columns), usual)
        }
        Surrounding::ClosedStdin => (spec.after("exec 0<&-"), usual),
        Surrounding::ClosedStdout => (spec.after("exec 1>&-"), silent),
        Surrounding::ClosedStderr => (spec.after("exec 2>&-"), silent),
        Surrounding::AllClosed => (spec.after("exec 0<&- 1>&- 2>&-"), silent),
        Surrounding::FullStdout => (spec.stdout_to(StdoutTarget::Full), silent),
        Surrounding::BrokenPipe => (spec.stdout_to(StdoutTarget::BrokenPipe), silent),
        Surrounding::OpenUmask => (spec.after("umask 000"), usual),
        Surrounding::ClosedUmask => (spec.after("umask 777"), usual),
        Surrounding::FewDescriptors => (spec.after(format!("ulimit -n {}", case.choices.between(5, 64))), usual),
        Surrounding::FewProcesses => {
            let limit = format!("prlimit --nproc={}", case.choices.between(1, 12));
            let spec = with_program(case, spec, "prlimit", &limit)?;
            (as_nobody(case, spec)?, usual)
        }
        Surrounding::LittleMemory => {
            let mb = case.choices.between(100, 1500);
            (spec.after(format!("ulimit -v {}", mb * 1024)), usual)
        }
        Surrounding::SmallStacks => (spec.after(format!("ulimit -s {}", case.choices.between(256, 1024))), usual),
        // Longer than any of the commands takes: SIGXCPU must not come early, and a busy loop would be seen.
        Surrounding::LittleCpuTime => (spec.after("ulimit -t 60"), usual),
        Surrounding::NoCoreFile => (spec.after("ulimit -c 0"), usual),
        Surrounding::OneCore => (with_program(case, spec, "taskset", "taskset -c 0")?, usual),
        Surrounding::Nice => (with_program(case, spec, "nice", "nice -n 19")?, usual),
        Surrounding::NoCurrentFolder => (spec.after("mkdir gone && cd gone && rmdir ../gone"), usual),
        Surrounding::Nobody => (as_nobody(case, spec)?, usual),
        Surrounding::NobodyClosedUmask => (as_nobody(case, spec)?.after("umask 777"), usual),
        Surrounding::IgnoredSignals => (spec.after("trap '' HUP INT TERM PIPE"), usual),
        Surrounding::ManyVariables => {
            let spec = (0..300).fold(spec, |spec, i| spec.env(&format!("VARIABLE_{i}"), &"x".repeat(300)));
            (spec, usual)
        }
    })
}

/// The command as a user without rights, in a folder that everyone may write to.
fn as_nobody(case: &mut CaseContext<'_>, spec: CommandSpec) -> Option<CommandSpec> {
    if !rustix::process::geteuid().is_root() {
        case.not_run("commands of another user: only root may change the user");
        return None;
    }
    for name in [".", "home", "tmp", "corpus", "checkpoint"] {
        let _ = fs::create_dir_all(case.path(name));
    }
    let opened = Command::new("chmod").args(["-R", "a+rwX"]).arg(case.folder()).status();
    if !opened.is_ok_and(|status| status.success()) {
        case.not_run("commands of another user: the folder cannot be opened to it");
        return None;
    }
    with_program(case, spec, "setpriv", NOBODY)
}

/// The command through another program, if that is installed.
fn with_program(case: &mut CaseContext<'_>, spec: CommandSpec, program: &str, words: &str) -> Option<CommandSpec> {
    let folders = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    if !folders.iter().any(|folder| Path::new(folder).join(program).exists()) {
        case.not_run(format!("{program} is not installed"));
        return None;
    }
    Some(spec.through(words))
}
