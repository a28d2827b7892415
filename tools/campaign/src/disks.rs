//! Full and read-only disks: an error with a documented exit code, earlier checkpoints untouched, and the bytes of an
//! undisturbed run once there is room.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::case::CaseContext;
use crate::command::{CommandSpec, HowEnded};
use crate::fixtures::{VARIANTS, last_checkpoint};
use crate::kills::{DisturbTime, complete_or_absent, finish};
use crate::mounts::MountedFolder;
use crate::tree;
use crate::verdict::Expectation;

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    case.copy_corpus()?;
    // In turn, so that a short campaign has different ones.
    match (case.id.number + case.campaign.seed) % 10 {
        0 => full_run_folder(case, &|case| format!("size={}m", case.choices.between(1, 150))),
        1 => file_size_limit(case),
        2 => read_only_run_folder(case),
        3 => fills_up(case),
        4 => read_only_corpus(case),
        5 => full_home_and_temporary_folder(case),
        6 => full_demo(case),
        7 => full_speech(case),
        8 => full_run_folder(case, &|case| format!("size=300m,nr_inodes={}", case.choices.between(2, 60))),
        _ => full_watchers(case),
    }
}

/// Mounts a tmpfs on a folder of the case. None, and a note, where that is not permitted.
fn mounted(case: &mut CaseContext<'_>, name: &str, options: &str) -> Option<MountedFolder> {
    match MountedFolder::tmpfs(&case.path(name), options) {
        Ok(mounted) => {
            case.counts.inputs += 1;
            Some(mounted)
        }
        Err(reason) => {
            case.not_run(format!("a file system of its own: {reason}"));
            None
        }
    }
}

/// Too little room, in bytes or in files, for the checkpoints of a run. Then there is enough.
fn full_run_folder(case: &mut CaseContext<'_>, options: &dyn Fn(&mut CaseContext<'_>) -> String) -> anyhow::Result<()> {
    let variant = *case.choices.pick(&VARIANTS);
    case.reference(variant)?;
    let options = options(case);
    let Some(disk) = mounted(case, "run", &options) else { return Ok(()) };
    let outcome = case.run(&variant.command())?;
    case.count(if outcome.succeeded() { "room was enough" } else { "room was not enough" });
    complete_or_absent(case)?;
    disk.remount("size=600m,nr_inodes=10000").map_err(anyhow::Error::msg)?;
    finish(case, variant)
}

/// `ulimit -f` fails writes as a full disk does.
fn file_size_limit(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let variant = *case.choices.pick(&VARIANTS);
    case.reference(variant)?;
    let blocks = 1 << case.choices.between(0, 15);
    case.counts.inputs += 1;
    case.run(&variant.command().after(format!("ulimit -f {blocks}")))?;
    complete_or_absent(case)?;
    finish(case, variant)
}

/// A run folder that cannot be written to keeps all it has.
fn read_only_run_folder(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let variant = VARIANTS[0];
    let reference = case.reference(variant)?;
    let Some(disk) = mounted(case, "run", "size=600m") else { return read_only_by_mode(case) };
    tree::copy(&reference.run, &case.path("run"))?;
    fs::remove_dir_all(last_checkpoint(&case.path("run")))?;
    let before = tree::digest(&case.path("run"))?;
    disk.remount("ro").map_err(anyhow::Error::msg)?;
    let outcome = case.run(&variant.command())?;
    if outcome.succeeded() {
        case.fail("a run succeeds in a read-only folder");
    }
    case.run_expecting(&CommandSpec::new("monitor --once run"), &Expectation::code(0))?;
    let line = "synthesize --mode cpu --checkpoint run --text Hello. -o out.wav";
    case.run_expecting(&CommandSpec::new(line), &Expectation::code(0))?;
    case.unchanged("run", &before)?;
    disk.remount("rw").map_err(anyhow::Error::msg)?;
    finish(case, variant)
}

/// The same for a user who may not mount, by the mode of the folder.
fn read_only_by_mode(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        case.not_run("a read-only folder: root ignores its mode");
        return Ok(());
    }
    fs::create_dir_all(case.path("run"))?;
    fs::set_permissions(case.path("run"), fs::Permissions::from_mode(0o555))?;
    case.counts.inputs += 1;
    let outcome = case.run(&VARIANTS[0].command())?;
    if outcome.succeeded() {
        case.fail("a run succeeds in a read-only folder");
    }
    fs::set_permissions(case.path("run"), fs::Permissions::from_mode(0o755))?;
    finish(case, VARIANTS[0])
}

/// The disk fills up, or becomes read-only, while the run trains.
fn fills_up(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let variant = *case.choices.pick(&VARIANTS);
    let reference = case.reference(variant)?;
    let Some(disk) = mounted(case, "run", "size=200m") else { return Ok(()) };
    let time = DisturbTime::choose(case, reference.wall);
    let read_only = case.choices.one_in(3);
    let mut running = case.spawn(&variant.command())?;
    time.wait(&mut running, &case.path("run"))?;
    match read_only {
        // Refused while files are open for writing: then the disk fills up instead.
        true if disk.remount("ro").is_ok() => case.count("became read-only"),
        _ => {
            let _ = fs::write(disk.path("filler"), vec![1; 200 << 20]);
            case.count("filled up");
        }
    }
    let outcome = running.wait()?;
    case.judge(&outcome, &Expectation::default());
    let _ = disk.remount("rw,size=600m");
    let _ = fs::remove_file(disk.path("filler"));
    complete_or_absent(case)?;
    finish(case, variant)
}

/// A corpus is only read.
fn read_only_corpus(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    case.remove("corpus");
    let Some(disk) = mounted(case, "corpus", "size=50m") else { return Ok(()) };
    case.copy_corpus()?;
    disk.remount("ro").map_err(anyhow::Error::msg)?;
    case.run_expecting(&CommandSpec::new("corpus check corpus"), &Expectation::code(0))?;
    let variant = *case.choices.pick(&VARIANTS);
    case.reference(variant)?;
    finish(case, variant)
}

/// Caches that cannot be written change nothing.
fn full_home_and_temporary_folder(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let variant = *case.choices.pick(&VARIANTS);
    case.reference(variant)?;
    let Some(home) = mounted(case, "home", "size=4k") else { return Ok(()) };
    let Some(temporary) = mounted(case, "tmp", "size=4k") else { return Ok(()) };
    let _ = fs::write(home.path("filler"), vec![1; 4096]);
    let _ = fs::write(temporary.path("filler"), vec![1; 4096]);
    if case.choices.one_in(2) {
        home.remount("ro").map_err(anyhow::Error::msg)?;
        temporary.remount("ro").map_err(anyhow::Error::msg)?;
    }
    case.run_expecting(&CommandSpec::new("corpus check corpus"), &Expectation::code(0))?;
    case.run(&CommandSpec::new(
        "validate --mode cpu --model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200",
    ))?;
    finish(case, variant)
}

/// A demo corpus that does not fit: an error, and no corpus that passes for a complete one.
fn full_demo(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let size = format!("size={}k", case.choices.between(4, 2500));
    let Some(disk) = mounted(case, "disk", &size) else { return Ok(()) };
    let spec = CommandSpec::new("corpus demo --minutes 0.7 -o disk/demo");
    let outcome = case.run(&spec)?;
    if !outcome.succeeded() && case.path("disk/demo").exists() {
        let checked = case.run(&CommandSpec::new("corpus check disk/demo -q"))?;
        if checked.succeeded() {
            case.fail("an incomplete demo corpus passes the check");
        }
    }
    disk.remount("size=50m").map_err(anyhow::Error::msg)?;
    if !case.run(&spec)?.succeeded() {
        case.remove("disk/demo");
        case.run_expecting(&spec, &Expectation::code(0))?;
    }
    let expected = tree::digest(&case.campaign.fixtures.corpus())?;
    let differences = tree::differences(&expected, &tree::digest(&case.path("disk/demo"))?);
    if !differences.is_empty() {
        case.fail(format!("the repeated demo corpus differs: {}", differences.join(", ")));
    }
    Ok(())
}

/// Speech and features that do not fit: an error, and no file.
fn full_speech(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let reference = case.reference(VARIANTS[0])?;
    tree::copy(&last_checkpoint(&reference.run), &case.path("checkpoint"))?;
    let recording = fs::read_dir(case.path("corpus/wavs"))?.flatten().map(|entry| entry.file_name()).min();
    let recording = recording.unwrap_or_default().to_string_lossy().into_owned();
    let Some(disk) = mounted(case, "disk", "size=4k") else { return Ok(()) };
    if case.choices.one_in(2) {
        disk.remount("ro").map_err(anyhow::Error::msg)?;
    }
    for line in [
        "synthesize --mode cpu --checkpoint checkpoint --text Hello. -o disk/out.wav".to_owned(),
        format!("corpus features corpus/wavs/{recording} -o disk/mel.npy"),
        "doctor --mode cpu --model-size nano --batch-size 2 --buffer-size 4 -o disk/report.txt".to_owned(),
    ] {
        let outcome = case.run(&CommandSpec::new(&line))?;
        if outcome.ended == HowEnded::Exited(0) {
            case.fail("exit code 0 on a full disk");
        }
        let left: Vec<String> = fs::read_dir(case.path("disk"))?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        if !left.is_empty() {
            case.fail(format!("an incomplete file is left: {}", left.join(", ")));
            left.iter().for_each(|name| case.remove(&format!("disk/{name}")));
        }
    }
    Ok(())
}

/// Logs and traces that cannot be written fail no run.
fn full_watchers(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let variant = *case.choices.pick(&VARIANTS);
    let reference = case.reference(variant)?;
    let size = format!("size={}k", 4 * case.choices.between(1, 20));
    let Some(_disk) = mounted(case, "disk", &size) else { return Ok(()) };
    let spec = variant.command().arg("--run-log").arg("disk/log.jsonl").arg("--trace").arg("disk/trace.json");
    let outcome = case.run(&spec.arg("--tensorboard-dir").arg("disk/tensorboard"))?;
    if outcome.succeeded() {
        case.same_bytes("run", &reference);
    } else {
        case.fail(format!("a log that cannot be written fails the run: {:?}", outcome.ended));
    }
    Ok(())
}
