//! Data-parallel training: several processes train one model, whatever starts them and whatever happens to one of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;

use crate::command::{Ran, TandemCommand, contains, tandem};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, demo};
use crate::terminal::eventually;
use crate::train::{events, losses, tensors};

/// Four micro-batches of one utterance a step: one, two or four ranks can share them.
const SHORT: &str = "--model-size nano --batch-size 4 --grad-accum 4 --mode cpu --buffer-size 6 --num-workers 1";

fn train(line: &str, dir: &Path) -> Vec<String> {
    let mut words: Vec<String> = format!("train {line}").split_whitespace().map(str::to_owned).collect();
    for (flag, path) in [("--train-data", demo()), ("--checkpoint-dir", dir)] {
        words.extend([flag.to_owned(), path.to_str().unwrap().to_owned()]);
    }
    words
}

/// `ranks` processes on this machine, or one without a supervisor.
fn launched(ranks: u32, line: &str, dir: &Path) -> TandemCommand {
    match ranks {
        1 => TandemCommand::new("").args(train(line, dir)),
        _ => TandemCommand::new(&format!("launch -n {ranks}")).args(train(line, dir)),
    }
}

#[track_caller]
fn trained(ranks: u32, line: &str, dir: &Path) -> Ran {
    let ran = launched(ranks, line, dir).run();
    assert_eq!(ran.code, 0, "{ranks} ranks, {line}: {ran:?}");
    ran
}

/// The f32 tensors of a file.
fn floats(file: &[u8]) -> Vec<(String, Vec<f32>)> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let read = |spec: &Value| {
        let at = |i: usize| 8 + length + spec["data_offsets"][i].as_u64().unwrap() as usize;
        let bytes = &file[at(0)..at(1)];
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    tensors.map(|(name, spec)| (name, read(&spec))).collect()
}

/// ‖a − b‖ ÷ ‖a‖ over all tensors whose names start with `prefix`.
fn difference(a: &[u8], b: &[u8], prefix: &str) -> f64 {
    let (a, b) = (floats(a), floats(b));
    let (mut of_difference, mut of_a) = (0.0, 0.0);
    for ((name, a), (_, b)) in a.iter().zip(&b).filter(|((name, _), _)| name.starts_with(prefix)) {
        assert_eq!(a.len(), b.len(), "{name}");
        for (x, y) in a.iter().zip(b) {
            of_difference += f64::from(x - y).powi(2);
            of_a += f64::from(*x).powi(2);
        }
    }
    (of_difference / of_a).sqrt()
}

fn loss_at(dir: &Path, step: u64) -> f64 {
    let event = events(dir, "step_metrics").into_iter().find(|event| event["step"] == step).unwrap();
    event["losses"]["loss"].as_f64().unwrap()
}

#[test]
fn any_number_of_ranks_trains_the_same_model() {
    let folder = TempFolder::new();
    let line = format!("{SHORT} --max-steps 50");
    let first = folder.path("step1-1");
    trained(1, &format!("{SHORT} --max-steps 1"), &first);
    trained(1, &line, &folder.path("50-1"));
    for ranks in [2, 4] {
        let dir = folder.path(&format!("step1-{ranks}"));
        trained(ranks, &format!("{SHORT} --max-steps 1"), &dir);
        // After one step the first moment of AdamW is a tenth of the gradient.
        let gradient = difference(&tensors(&first, 1)[1], &tensors(&dir, 1)[1], "first_moment.");
        assert!(gradient <= 1e-6, "{ranks} ranks: {gradient}");
        let dir = folder.path(&format!("50-{ranks}"));
        trained(ranks, &line, &dir);
        let (one, several) = (loss_at(&folder.path("50-1"), 50), loss_at(&dir, 50));
        assert!((one - several).abs() <= 1e-4, "{ranks} ranks: {one} {several}");
    }
}

#[test]
fn the_same_ranks_give_the_same_bits() {
    let folder = TempFolder::new();
    let line = format!("{SHORT} --max-steps 6 --checkpoint-every 3");
    let (a, b) = (folder.path("a"), folder.path("b"));
    let ran = trained(2, &line, &a);
    contains(
        &ran.out,
        &["Data parallel: 2 ranks, 4 micro-batches a step, 2 on each rank", "Training finished: 6 steps"],
    );
    assert_eq!(ran.out.matches("Training finished").count(), 1, "rank 0 speaks for all: {ran:?}");
    assert_eq!(ran.err, "", "{ran:?}");
    contains(&ran.out, &["train longer:\n       tandem launch -n 2 train "]);
    trained(2, &line, &b);
    assert_eq!(tensors(&a, 6), tensors(&b, 6));
    assert_eq!(losses(&a), losses(&b));
    // One run folder; the other rank has a log of its own.
    assert_eq!(events(&a.join("ranks/1"), "step_metrics").len(), 6);
    assert!(!a.join("ranks/0").exists() && !a.join("ranks/1/checkpoint-00000006").exists());
    assert_eq!(losses(&a), losses(&a.join("ranks/1")), "the loss of a step is that of all ranks");
}

#[test]
fn a_run_resumes_with_another_number_of_ranks() {
    let folder = TempFolder::new();
    // Without --grad-accum, the folder says how many micro-batches a step has.
    let line = SHORT.replace(" --grad-accum 4", "");
    let whole = folder.path("whole");
    let ran = trained(4, &format!("{line} --max-steps 9 --checkpoint-every 3"), &whole);
    contains(&ran.out, &["--grad-accum raised from 1 to 4: 4 ranks share the micro-batches of a step"]);
    let resumed = folder.path("resumed");
    trained(4, &format!("{line} --max-steps 3 --epochs 1000"), &resumed);
    for (ranks, steps) in [(1, 6), (2, 9)] {
        let ran = trained(ranks, &format!("{line} --max-steps {steps} --epochs 1000"), &resumed);
        contains(&ran.out, &["Resuming from step ", "the run in this folder has 4 micro-batches a step"]);
    }
    for step in [3, 6, 9] {
        // The schedule of a longer run is another: only the batches are compared.
        let (a, b) = (batches_of(&whole, step), batches_of(&resumed, step));
        assert_eq!(a, b, "step {step}");
    }
    // Three ranks cannot share four micro-batches.
    let refused = launched(3, &format!("{line} --max-steps 12 --epochs 1000"), &resumed).run();
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(&refused.err, &["has 4 micro-batches a step, which 3 ranks cannot share equally: use 1 or 2 or 4 ranks"]);
}

/// Where the data of a checkpoint is.
fn batches_of(dir: &Path, step: u64) -> Value {
    let state = fs::read(dir.join(format!("checkpoint-{step:08}/state.json"))).unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    let text = state.to_string();
    assert!(text.contains("\"next\""), "{text}");
    find(&state, "feed").unwrap()["next"].clone()
}

/// The first value of this key, at any depth.
fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => map.get(key).or_else(|| map.values().find_map(|value| find(value, key))),
        _ => None,
    }
}

#[test]
fn bad_recordings_are_replaced_alike_on_any_number_of_ranks() {
    let (corpus, rows) = copy_of_demo();
    let bad: Vec<&str> = rows.iter().step_by(4).filter_map(|row| row.split('|').next()).collect();
    bad.iter().for_each(|id| drop(corpus.file(&format!("wavs/{id}.wav"), "not a recording")));
    let folder = TempFolder::new();
    let line = format!("{SHORT} --max-steps 8 --max-bad-fraction 1");
    let run = |ranks: u32| {
        let dir = folder.path(&ranks.to_string());
        let words = train(&line, &dir).into_iter().map(|word| match word == demo().to_str().unwrap() {
            true => corpus.path("").to_str().unwrap().to_owned(),
            false => word,
        });
        let start = if ranks == 1 { String::new() } else { format!("launch -n {ranks}") };
        let ran = TandemCommand::new(&start).args(words).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        (1..=8).map(|step| loss_at(&dir, step)).collect::<Vec<f64>>()
    };
    let (one, two) = (run(1), run(2));
    // Frames and tokens of replacements are known to one rank only; the losses divide by those of all.
    assert!(one.iter().zip(&two).all(|(one, two)| (one - two).abs() < 1e-4), "{one:?} {two:?}");
}

/// Processes that a test starts as ranks, as any launcher would.
struct Ranks {
    children: Vec<Child>,
}

impl Ranks {
    fn port() -> u16 {
        // Free a moment ago: the next process to ask gets another.
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    /// The environment of torchrun.
    fn command(rank: u32, size: u32, port: u16, words: &[String]) -> Command {
        let mut command = TandemCommand::new("").args(words).into_std();
        for (name, number) in [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", size), ("LOCAL_WORLD_SIZE", size)] {
            command.env(name, number.to_string());
        }
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "1").env("TANDEM_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(commands: Vec<Command>) -> Ranks {
        Ranks { children: commands.into_iter().map(|mut command| command.spawn().unwrap()).collect() }
    }

    /// Waits for all of them: exit code and output of each.
    fn wait(mut self) -> Vec<Ran> {
        let text = |child: &mut Child| {
            let (mut out, mut err) = (String::new(), String::new());
            child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut out).unwrap());
            child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut err).unwrap());
            let status: ExitStatus = child.wait().unwrap();
            Ran { code: status.code().unwrap_or(-1), out, err }
        };
        self.children.iter_mut().map(text).collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn ranks_are_started_by_torchrun_slurm_or_open_mpi() {
    let folder = TempFolder::new();
    let line = format!("{SHORT} --max-steps 3");
    trained(2, &line, &folder.path("ours"));
    type Variables = fn(u32) -> Vec<(&'static str, String)>;
    let environments: [(&str, Variables); 3] = [
        ("torchrun", |rank| {
            let numbers = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 2)];
            numbers.map(|(name, number)| (name, number.to_string())).to_vec()
        }),
        ("slurm", |rank| {
            let numbers = [("SLURM_PROCID", rank), ("SLURM_LOCALID", rank), ("SLURM_NTASKS", 2), ("SLURM_NODEID", 0)];
            let numbers = numbers.into_iter().chain([("SLURM_STEP_ID", 0)]);
            let mut all: Vec<_> = numbers.map(|(name, number)| (name, number.to_string())).collect();
            all.extend([
                ("SLURM_STEP_TASKS_PER_NODE", "2".to_owned()),
                ("SLURM_STEP_NODELIST", "localhost".to_owned()),
            ]);
            all
        }),
        ("open-mpi", |rank| {
            let names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"];
            let sizes = ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"];
            let ranks = names.into_iter().map(|name| (name, rank.to_string()));
            ranks.chain(sizes.into_iter().map(|name| (name, "2".to_owned()))).collect()
        }),
    ];
    for (name, environment) in environments {
        let (dir, port) = (folder.path(name), Ranks::port());
        let command = |rank: u32| {
            let mut command = TandemCommand::new("").args(train(&line, &dir)).into_std();
            command.envs(environment(rank)).env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", (port - 1).to_string());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        };
        let ended = Ranks::start((0..2).map(command).collect()).wait();
        assert!(ended.iter().all(|ran| ran.code == 0), "{name}: {ended:?}");
        assert_eq!(ended[1].out, "", "{name}");
        assert_eq!(tensors(&folder.path("ours"), 3), tensors(&dir, 3), "{name}");
    }
}

#[test]
fn a_rank_with_other_settings_ends_the_run_with_the_difference() {
    let folder = TempFolder::new();
    let (dir, port) = (folder.path("run"), Ranks::port());
    let command = |rank: u32| {
        let seed = 7 + rank;
        Ranks::command(rank, 2, port, &train(&format!("{SHORT} --max-steps 3 --seed {seed}"), &dir))
    };
    for ran in Ranks::start((0..2).map(command).collect()).wait() {
        assert_eq!(ran.code, 2, "{ran:?}");
        contains(&ran.err, &["the ranks have different settings", "on rank 1 and ", "on rank 0"]);
    }
}

#[test]
fn a_stranger_cannot_join_and_holds_nobody_up() {
    let folder = TempFolder::new();
    let (dir, port) = (folder.path("run"), Ranks::port());
    let words = train(&format!("{SHORT} --max-steps 2"), &dir);
    let command = |rank: u32, token: &str| {
        let mut command = Ranks::command(rank, 2, port, &words);
        command.env("TANDEM_TOKEN", token);
        command
    };
    let first = Ranks::start(vec![command(0, "the-token-of-the-run")]);
    let mut silent = None;
    eventually(|| {
        silent = TcpStream::connect(("127.0.0.1", port)).ok();
        silent.as_ref().map(drop).ok_or("rank 0 does not listen".to_owned())
    });
    let strangers = Ranks::start(vec![command(1, "another-token")]).wait();
    assert_eq!(strangers[0].code, 2, "{strangers:?}");
    contains(&strangers[0].err, &["[rank 1] ❌ rank 0 refused this process: wrong token"]);
    assert!(!strangers[0].err.contains("the-token-of-the-run"));
    let second = Ranks::start(vec![command(1, "the-token-of-the-run")]).wait();
    assert_eq!(second[0].code, 0, "{second:?}");
    let first = first.wait();
    assert_eq!(first[0].code, 0, "{first:?}");
    drop(silent);
}

#[test]
fn ranks_on_several_machines_need_a_token() {
    let folder = TempFolder::new();
    let words = train(&format!("{SHORT} --max-steps 2"), &folder.path("run"));
    let mut command = Ranks::command(0, 2, Ranks::port(), &words);
    command.env("LOCAL_WORLD_SIZE", "1").env("MASTER_ADDR", "192.0.2.7");
    let ended = Ranks::start(vec![command]).wait();
    assert_eq!(ended[0].code, 2, "{ended:?}");
    contains(&ended[0].err, &["TANDEM_TOKEN"]);
}

#[test]
fn a_rank_whose_weights_changed_on_their_own_ends_the_run_with_its_name() {
    let folder = TempFolder::new();
    let (dir, port) = (folder.path("run"), Ranks::port());
    let words = train(&format!("{SHORT} --max-steps 9 --checkpoint-every 3"), &dir);
    let command = |rank: u32| {
        let mut command = Ranks::command(rank, 2, port, &words);
        if rank == 1 {
            command.env("TANDEM_FAULT", "drift@step:5");
        }
        command
    };
    let ended = Ranks::start((0..2).map(command).collect()).wait();
    for ran in &ended {
        assert_eq!(ran.code, 1, "{ran:?}");
        contains(&ran.err, &["rank 1 has drifted: its weights after step 6 differ"]);
    }
    assert!(dir.join("checkpoint-00000003").exists() && !dir.join("checkpoint-00000006").exists());
}

#[test]
pub(crate) fn a_rank_that_hangs_is_named_after_the_timeout() {
    let folder = TempFolder::new();
    let (dir, port) = (folder.path("run"), Ranks::port());
    let words = train(&format!("{SHORT} --max-steps 100000 --epochs 100000 --rank-timeout 20"), &dir);
    let command = |rank: u32| Ranks::command(rank, 2, port, &words);
    let mut first = Ranks::start(vec![command(0)]);
    let second = Ranks::start(vec![command(1)]);
    let out = BufReader::new(first.children[0].stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(out.into_iter().any(|line| line.contains("Estimated time")), "no step was trained");
    let stopped = Command::new("kill").args(["-STOP", &second.children[0].id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let ended = first.wait();
    assert_eq!(ended[0].code, 1, "{ended:?}");
    contains(&ended[0].err, &["rank 1 did not reach the next step within "]);
}

/// Starts a supervised run, and calls `then` with the supervisor's process id once a line has `part`.
fn supervised(line: &str, dir: &Path, part: &str, then: impl FnOnce(u32)) -> Ran {
    let mut command = launched(2, line, dir).into_std();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(part)), "{part} was not printed");
    then(child.id());
    let out = lines.collect::<Vec<_>>().join("\n");
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    Ran { code: child.wait().unwrap().code().unwrap_or(-1), out, err }
}

/// The process ids of the ranks of a supervisor, by rank.
fn ranks_of(supervisor: u32) -> Vec<String> {
    let path = format!("/proc/{supervisor}/task/{supervisor}/children");
    fs::read_to_string(path).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_killed_rank_is_named_and_all_start_again_to_the_same_bits() {
    let folder = TempFolder::new();
    let line = format!("{SHORT} --max-steps 12 --checkpoint-every 3");
    let uninterrupted = folder.path("uninterrupted");
    trained(2, &line, &uninterrupted);
    for (rank, last_line) in [(0, "Wrote checkpoint-00000006"), (1, "Wrote checkpoint-00000003"), (1, "Creating model")]
    {
        let dir = folder.path(&format!("{rank}-{}", &last_line[..5]));
        let ran = supervised(&line, &dir, last_line, |supervisor| {
            let killed = Command::new("kill").args(["-9", &ranks_of(supervisor)[rank]]).status().unwrap();
            assert!(killed.success());
        });
        assert_eq!(ran.code, 0, "{ran:?}");
        contains(&ran.err, &[&format!("rank {rank} was killed by signal 9: starting all ranks again")]);
        assert_eq!(tensors(&uninterrupted, 12), tensors(&dir, 12), "rank {rank}, {last_line}");
        assert_eq!(losses(&uninterrupted), losses(&dir));
    }
}

#[test]
fn a_restart_does_not_reset_the_run_again() {
    let folder = TempFolder::new();
    let (whole, dir) = (folder.path("whole"), folder.path("run"));
    let line = format!("{SHORT} --max-steps 12 --checkpoint-every 3");
    trained(2, &line, &whole);
    // An earlier run, which --reset-training moves aside once.
    trained(2, &format!("{SHORT} --max-steps 3"), &dir);
    let reset = format!("{line} --reset-training");
    let ran = supervised(&reset, &dir, "Wrote checkpoint-00000006", |supervisor| {
        assert!(Command::new("kill").args(["-9", &ranks_of(supervisor)[1]]).status().unwrap().success());
    });
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["Resuming from step "]);
    assert_eq!(moved_aside(&dir), 1, "{ran:?}");
    assert_eq!(tensors(&whole, 12), tensors(&dir, 12));
}

/// Runs that were moved aside in a run folder.
fn moved_aside(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("previous-")).count()
}

#[test]
fn a_reset_that_was_not_done_yet_is_done_after_the_restart() {
    let folder = TempFolder::new();
    let (whole, dir) = (folder.path("whole"), folder.path("run"));
    let line = format!("{SHORT} --max-steps 6 --checkpoint-every 3");
    trained(2, &line, &whole);
    trained(2, &format!("{SHORT} --max-steps 9"), &dir);
    // Killed while the model is created: the run must not continue the one that it was asked to move aside.
    let ran = supervised(&format!("{line} --reset-training"), &dir, "Creating model", |supervisor| {
        assert!(Command::new("kill").args(["-9", &ranks_of(supervisor)[1]]).status().unwrap().success());
    });
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(moved_aside(&dir) >= 1 && !dir.join("checkpoint-00000009").exists());
    assert_eq!(tensors(&whole, 6), tensors(&dir, 6));
}

#[test]
fn a_second_ctrl_c_ends_all_ranks_at_once() {
    let folder = TempFolder::new();
    // A step that takes minutes: the first signal waits for its end.
    let mut command = launched(2, &format!("{SHORT} --max-steps 5"), &folder.path("run")).into_std();
    command.env("TANDEM_FAULT", "slow:step:100000").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("Model training starting now")));
    let ranks = ranks_of(child.id());
    let interrupted =
        || assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    interrupted();
    // The ranks have it: each of them notes a caught signal, and the supervisor passes the next one on.
    eventually(|| {
        interrupted();
        let running = ranks.iter().filter(|rank| is_running(rank)).count();
        if running == 0 { Ok(()) } else { Err(format!("{running} ranks still run")) }
    });
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn of_several_ranks_one_document_is_printed() {
    let folder = TempFolder::new();
    let ran = launched(2, &format!("{SHORT} --max-steps 2 --json"), &folder.path("run")).run();
    assert_eq!((ran.code, &ran.json()["steps"]), (0, &2.into()), "{ran:?}");
    // Three ranks cannot share four utterances.
    let refused = launched(3, "--mode cpu --model-size nano --batch-size 4 --json", &folder.path("other")).run();
    assert_eq!((refused.code, &refused.json()["code"]), (2, &2.into()), "{refused:?}");
    contains(&refused.err, &["--grad-accum 3 must divide --batch-size 4"]);
}

#[test]
fn variables_of_a_launcher_change_no_other_command() {
    let command = TandemCommand::new("plan --sim 1x24GiB --model-size nano");
    let rank = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
    let ran = rank.iter().fold(command, |command, (name, value)| command.env(name, value)).run();
    // Neither quiet nor with the number of a rank before its lines.
    assert!(ran.code == 0 && !ran.both().contains("[rank 1]"), "{ran:?}");
    contains(&ran.out, &["[simulated] Mode:        Single-GPU Buffered Mode", "[simulated] Memory of the model role"]);
}

#[test]
fn without_restarts_the_others_end_and_the_same_command_resumes() {
    let folder = TempFolder::new();
    let (whole, dir) = (folder.path("whole"), folder.path("run"));
    let line = format!("{SHORT} --max-steps 12 --checkpoint-every 3");
    trained(2, &line, &whole);
    let start = || TandemCommand::new("launch -n 2 --max-restarts 0").args(train(&line, &dir));
    let mut child = start().into_std().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("Wrote checkpoint-00000006")));
    let killed = Command::new("kill").args(["-9", &ranks_of(child.id())[1]]).status().unwrap();
    assert!(killed.success());
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{err}");
    contains(&err, &["rank 1 is lost", "rank 1 was killed by signal 9", "type the same command again"]);
    assert_eq!(start().run().code, 0);
    assert_eq!(tensors(&whole, 12), tensors(&dir, 12));
}

#[test]
fn a_signal_stops_all_ranks_at_one_step_with_one_checkpoint() {
    let folder = TempFolder::new();
    let line = format!("{SHORT} --max-steps 40 --checkpoint-every 100");
    let whole = folder.path("whole");
    trained(2, &line, &whole);
    // To the supervisor, as by Ctrl-C; and to one rank only.
    for (signal, to_rank, code) in [("-INT", None, 130), ("-TERM", Some(1), 143)] {
        let dir = folder.path(signal);
        let ran = supervised(&line, &dir, "Estimated time", |supervisor| {
            let target = to_rank.map_or(supervisor.to_string(), |rank: usize| ranks_of(supervisor)[rank].clone());
            assert!(Command::new("kill").args([signal, &target]).status().unwrap().success());
        });
        assert_eq!(ran.code, code, "{ran:?}");
        contains(&ran.out, &["Stopped after step ", "resume: type the same command again"]);
        let last = |dir: &Path| events(dir, "step_metrics").last().unwrap()["step"].as_u64().unwrap();
        let step = last(&dir);
        assert!(step < 40 && step == last(&dir.join("ranks/1")), "{step}");
        assert!(dir.join(format!("checkpoint-{step:08}")).exists());
        trained(2, &line, &dir);
        assert_eq!(tensors(&whole, 40), tensors(&dir, 40));
    }
}

#[test]
fn ranks_end_with_their_supervisor() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let line = format!("{SHORT} --max-steps 100000 --epochs 100000");
    let mut ranks = Vec::new();
    supervised(&line, &dir, "Estimated time", |supervisor| {
        ranks = ranks_of(supervisor);
        assert!(Command::new("kill").args(["-9", &supervisor.to_string()]).status().unwrap().success());
    });
    // They write a checkpoint and end; nobody waits for them but this test.
    eventually(|| {
        let alive: Vec<&String> = ranks.iter().filter(|rank| is_running(rank)).collect();
        if alive.is_empty() { Ok(()) } else { Err(format!("still running: {alive:?}")) }
    });
    assert!(
        fs::read_dir(&dir)
            .unwrap()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("checkpoint-"))
    );
}

/// Whether a process exists and is not a zombie that nobody has waited for.
fn is_running(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
pub(crate) fn simulated_gpus_train_together() {
    let folder = TempFolder::new();
    let line = "--model-size nano --batch-size 4 --grad-accum 2 --buffer-size 6 --num-workers 1 --max-steps 5";
    let line = format!("{line} --no-mixed-precision");
    let cpu = folder.path("cpu");
    trained(2, &format!("{line} --mode cpu"), &cpu);
    for (name, gpus) in [("all", "--gpus all --sim 2x24GiB"), ("named", "--gpus 3,1 --sim 4x24GiB,seed=5")] {
        let dir = folder.path(name);
        let ran = trained(1, &format!("{line} {gpus}"), &dir);
        contains(&ran.out, &["[simulated]    Data parallel: 2 ranks, 2 micro-batches a step, one on each rank"]);
        assert_eq!(tensors(&cpu, 5), tensors(&dir, 5), "{name}: the bits of two ranks on the CPU");
    }
    let reserved = events(&folder.path("named").join("ranks/1"), "arena_reserved");
    assert!(!reserved.is_empty() && reserved.iter().all(|event| event["card"] == 1), "{reserved:?}");
    // Each rank keeps its limits.
    let limited = folder.path("limited");
    let limits = "--enable-memory-isolation --data-gpu-memory 1024 --model-gpu-memory 2048";
    trained(1, &format!("{line} --gpus all --sim 2x24GiB {limits}"), &limited);
    assert_eq!(tensors(&cpu, 5), tensors(&limited, 5));
    for log in [limited.clone(), limited.join("ranks/1")] {
        for event in events(&log, "process_memory") {
            assert!(event["bytes"].as_u64() <= event["limit_bytes"].as_u64(), "{event}");
        }
    }
}

#[test]
fn flags_that_contradict_several_ranks_are_refused_with_something_to_type() {
    let check = |line: &str, parts: &[&str]| {
        let ran = tandem(&format!("plan --sim 2x24GiB --model-size nano {line}"));
        assert_eq!(ran.code, 2, "{line}: {ran:?}");
        contains(&ran.err, parts);
    };
    check("--gpus 0,1 --data-gpu 0 --model-gpu 1", &["--gpus trains on every GPU", "--gpus 0,1"]);
    check("--gpus 0,1 --gpu 0", &["--gpu names one GPU and --gpus several"]);
    check("--gpus 0,1 --mode single", &["exclude each other"]);
    check("--gpus 0,2", &["Invalid gpus=2"]);
    check("--gpus 0,SIM-0", &["type more of it"]);
    check("--gpus 0,SIM-00000000-0000-0000-0000-000000006000", &["names GPU 0 twice"]);
    check("--gpus 0,0", &["names GPU 0 twice"]);
    check("--gpus all --disable-static-shapes", &["--disable-static-shapes is for one process"]);
    let ran = tandem("validate --sim 2x24GiB --model-size nano --gpus all");
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, &["--gpus all is for `train` and `plan`"]);
    let ran = tandem("plan --sim 2x24GiB --model-size nano --gpus all --batch-size 4");
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["--grad-accum raised from 1 to 2: 2 ranks share"]);
    for (line, part) in [
        ("launch -n 2 plan", "tandem launch runs `train` only, found `plan`"),
        ("launch train", "--ranks"),
        ("launch -n 0 train", "0"),
        ("train --gpus all --mode cpu", "--mode cpu uses no GPU"),
    ] {
        let ran = tandem(line);
        assert_eq!(ran.code, 2, "{line}: {ran:?}");
        contains(&ran.err, &[part]);
    }
}
