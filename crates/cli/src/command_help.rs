//! For each command: the flags that `-h` lists, and two examples.

/// What help says about one command besides its flags.
pub(crate) struct CommandHelp {
    /// `train`, `corpus check`; empty for `tandem` itself.
    pub(crate) command: &'static str,
    /// The flags of `-h`, in its order. Empty means all.
    pub(crate) main_flags: &'static [&'static str],
    /// Two command lines that work as typed, given the files they name.
    pub(crate) examples: [&'static str; 2],
}

/// The help of a command.
pub(crate) fn of(command: &str) -> Option<&'static CommandHelp> {
    COMMANDS.iter().find(|help| help.command == command)
}

const fn help(command: &'static str, main_flags: &'static [&'static str], examples: [&'static str; 2]) -> CommandHelp {
    CommandHelp { command, main_flags, examples }
}

static COMMANDS: &[CommandHelp] = &[
    help("", &[], ["tandem train", "tandem plan --sim 2x24GiB --data-gpu 0 --model-gpu 1"]),
    help(
        "train",
        &[
            "train-data",
            "checkpoint-dir",
            "model-size",
            "batch-size",
            "max-steps",
            "mode",
            "gpu",
            "gpus",
            "data-gpu",
            "model-gpu",
            "sim",
            "config",
            "json",
            "quiet",
        ],
        [
            "tandem train --train-data voice --checkpoint-dir runs/voice",
            "tandem train --train-data voice --data-gpu 0 --model-gpu 1 --enable-memory-isolation",
        ],
    ),
    help(
        "launch",
        &[],
        [
            "tandem launch -n 2 train --train-data voice --checkpoint-dir runs/two --mode cpu",
            "tandem launch -n 2 --max-restarts 0 train --train-data voice --checkpoint-dir runs/pair",
        ],
    ),
    help(
        "plan",
        &[
            "train-data",
            "model-size",
            "batch-size",
            "mode",
            "data-gpu",
            "model-gpu",
            "share-gpu",
            "sim",
            "config",
            "print-config",
            "recommend",
            "json",
            "quiet",
            "verbose",
        ],
        [
            "tandem plan --train-data voice --share-gpu",
            "tandem plan --sim 2x24GiB --data-gpu 0 --model-gpu 1 --batch-size 32",
        ],
    ),
    help(
        "validate",
        &[
            "train-data",
            "model-size",
            "batch-size",
            "mode",
            "data-gpu",
            "model-gpu",
            "share-gpu",
            "sim",
            "config",
            "json",
            "quiet",
            "verbose",
        ],
        [
            "tandem validate --data-gpu 0 --model-gpu 1 --enable-memory-isolation",
            "tandem validate --sim 1x24GiB --share-gpu",
        ],
    ),
    help("monitor", &[], ["tandem monitor runs/voice", "tandem monitor runs/voice --json"]),
    help(
        "profile",
        &[
            "num-steps",
            "confirm",
            "log",
            "train-data",
            "model-size",
            "batch-size",
            "mode",
            "data-gpu",
            "model-gpu",
            "share-gpu",
            "sim",
            "config",
            "json",
            "quiet",
        ],
        ["tandem profile --train-data voice --num-steps 50", "tandem profile --log runs/voice"],
    ),
    help(
        "synthesize",
        &["text", "text-file", "output", "checkpoint", "reference", "speaker", "speaking-rate", "gpu", "mode", "quiet"],
        [
            "tandem synthesize --text \"Good morning.\" -o morning.wav",
            "tandem synthesize --checkpoint runs/voice --text-file page.txt --reference me.wav -o page.wav",
        ],
    ),
    help(
        "bench",
        &["train-data"],
        ["tandem bench handoff", "tandem bench memory --share-gpu --enable-memory-isolation"],
    ),
    help("corpus", &[], ["tandem corpus check voice", "tandem corpus demo -o demo"]),
    help(
        "corpus check",
        &[],
        ["tandem corpus check voice", "tandem corpus check voice --exclude-ids held-out.txt --json"],
    ),
    help("corpus index", &[], ["tandem corpus index 'shards/*.tar'", "tandem corpus index voice --json"]),
    help(
        "corpus pack",
        &[],
        ["tandem corpus pack voice -o shards", "tandem corpus pack voice -o tables --format parquet --shard-mb 64"],
    ),
    help("corpus demo", &[], ["tandem corpus demo -o demo", "tandem corpus demo --minutes 2 --voices 2 -o two-voices"]),
    help(
        "corpus features",
        &[],
        [
            "tandem corpus features me.wav -o mel.npy",
            "tandem corpus features me.wav -o mel.npy --pitch pitch.npy --energy energy.npy",
        ],
    ),
    help(
        "doctor",
        &[
            "output",
            "pair",
            "train-data",
            "checkpoint-dir",
            "model-size",
            "batch-size",
            "mode",
            "data-gpu",
            "model-gpu",
            "share-gpu",
            "sim",
            "config",
            "json",
            "quiet",
        ],
        ["tandem doctor", "tandem doctor --share-gpu --checkpoint-dir runs/voice -o report.txt"],
    ),
    help("completions", &[], ["source <(tandem completions bash)", "tandem completions fish > tandem.fish"]),
    help("man", &[], ["tandem man > tandem.1", "tandem man -o man1"]),
];
