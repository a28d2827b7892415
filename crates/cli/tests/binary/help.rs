//! `-h` is one screen, `--help` is complete, and both are true: every flag with its default and values, examples that work
//! as typed, and the parameter counts of the presets.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use tandem_plan::setting::{SETTINGS, SettingKind};

use crate::command::{TandemCommand, contains, in_order, tandem};
use crate::machine::TempFolder;
use crate::speech::{demo, tone, wav_of};

/// Every command, as typed. Empty is `tandem` itself.
const COMMANDS: [&str; 18] = [
    "",
    "train",
    "launch",
    "plan",
    "validate",
    "monitor",
    "profile",
    "synthesize",
    "bench",
    "corpus",
    "corpus check",
    // Its shards are those of the examples of `index`.
    "corpus pack",
    "corpus index",
    "corpus demo",
    "corpus features",
    "doctor",
    "completions",
    "man",
];

/// What a command prints for `-h` or `--help`.
#[track_caller]
fn page(command: &str, flag: &str) -> String {
    let ran = tandem(&format!("{command} {flag}"));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{command} {flag}: {ran:?}");
    ran.out
}

/// The page in one line, so that wrapped texts are found.
fn unwrapped(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_list_of_commands_is_complete() {
    let listed = |page: &str| {
        let lines = page.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        lines.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut found = listed(&page("", "--help"));
    found.extend(listed(&page("corpus", "--help")).iter().map(|name| format!("corpus {name}")));
    let mut known: Vec<&str> = COMMANDS.into_iter().filter(|command| !command.is_empty()).collect();
    known.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, known);
}

#[test]
fn short_help_is_one_screen() {
    for command in COMMANDS {
        let page = page(command, "-h");
        let widest = page.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(page.lines().count() <= 24 && widest <= 100, "{command}: {widest} columns\n{page}");
        contains(&page, &["Usage: tandem", "Examples:\n", "--help\n"]);
    }
}

#[test]
fn the_help_of_train_has_every_setting_with_its_default_and_values() {
    let page = page("train", "--help");
    in_order(
        &page,
        &["\nData:\n", "\nModel:\n", "\nDevices and memory:\n", "\nPipeline:\n", "\nOutput:\n", "\nExamples:\n"],
    );
    let text = unwrapped(&page);
    for setting in SETTINGS {
        let value = match (setting.value_name(), setting.bare_value()) {
            (Some(name), Some(_)) => format!(" [<{name}>]"),
            (Some(name), None) if setting.takes_several() => format!(" <{name}>..."),
            (Some(name), None) => format!(" <{name}>"),
            (None, _) => String::new(),
        };
        // From this flag to the next.
        let start = format!(" --{}{value} {}", setting.flag, unwrapped(&setting.help_text()));
        let at = text.find(&start).unwrap_or_else(|| panic!("{start:?} is not in\n{page}"));
        let rest = &text[at..];
        let end = rest.find(" [default: ").unwrap_or_else(|| panic!("no default: {rest}"));
        contains(&rest[end..], &[&format!(" [default: {}]", unwrapped(setting.default_text()))]);
        if let SettingKind::Choice(words) = setting.kind {
            contains(&rest[..end], &[&format!(" [values: {}]", words.join(", "))]);
        }
        if let Some(off) = setting.off_flag() {
            contains(&rest[..end], &[&format!("; --{off} turns it off")]);
        }
    }
    contains(&text, &["--prometheus <ADDR>", "[default: a generated demo corpus]"]);
}

#[test]
fn a_flag_of_another_command_is_refused_with_the_command_that_takes_it() {
    for (line, flag) in [
        ("doctor --lr 0.001", "--lr"),
        ("bench handoff --epochs=3", "--epochs"),
        ("monitor --learning-rate 1", "--learning-rate"),
        ("corpus check voice --resume", "--resume"),
    ] {
        let ran = tandem(line);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{line}: {ran:?}");
        let command = line.split(" --").next().unwrap().replace(" handoff", "").replace(" voice", "");
        contains(
            &ran.err,
            &[&format!(
                "❌ {flag} is not a flag of tandem {command}; it is a flag of train, plan, validate and profile"
            )],
        );
        contains(&ran.err, &[&format!("tandem {command} --help")]);
    }
    let refusal = tandem("doctor --lr 0.001 --json");
    assert_eq!((refusal.code, &refusal.json()["code"]), (2, &2.into()));
    // A config file may have all settings, whichever command reads it.
    let folder = TempFolder::new();
    let config = folder.file("run.yaml", "training:\n  lr: 0.001\n  epochs: 3\nmodel:\n  model_size: nano\n");
    let ran = TandemCommand::new("bench handoff --steps 2 --mode cpu").config(&config).run();
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn flags_without_effect_are_accepted_where_a_line_of_train_is_tried() {
    for command in ["validate", "profile"] {
        let text = unwrapped(&page(command, "--help"));
        contains(&text, &["Accepted without effect, so that a line of train works here: --epochs, --max-steps"]);
        assert!(!text.contains("--lr <X>"), "{text}");
    }
    let line =
        "validate --lr 0.001 --max-steps 3 --model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200";
    let ran = TandemCommand::new(line).without_gpu().run();
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// The settings of a short run on the CPU, and of one on simulated cards.
const SHORT: &str = "training:\n  batch_size: 2\n  max_steps: 12\nmodel:\n  model_size: nano\ndata:\n  \
                     pipeline_buffer_size: 4\n  num_workers: 1\n  max_mel_frames: 400\n";

/// The files that the examples name. The run in `runs/voice` comes from the first example of `train`.
fn folder_of_examples() -> TempFolder {
    let folder = TempFolder::new();
    symlink(demo(), folder.path("voice")).unwrap();
    folder.file("me.wav", wav_of(&tone(22_050, 5.0)));
    folder.file("page.txt", "Good morning.");
    folder.file("held-out.txt", "");
    folder.file("cards.yaml", SHORT);
    folder.file("cpu.yaml", format!("{SHORT}  mode: cpu\n"));
    let ran = TandemCommand::new("train --train-data voice").config(Path::new("cpu.yaml")).inside(&folder).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    folder
}

/// What a test adds to an example so that it ends within seconds and needs no card.
fn additions(example: &str) -> String {
    let command = example.split(' ').find(|word| COMMANDS.contains(word)).unwrap();
    let on_cards = example.contains("-gpu") || example.contains("--sim");
    let sim = if on_cards && !example.contains("--sim") { " --sim 2x24GiB" } else { "" };
    let config = format!(" --config {}{sim}", if on_cards { "cards.yaml" } else { "cpu.yaml" });
    match command {
        // Half an hour of speech takes too long. And a folder of its own: another configuration is another run.
        "train" if !example.contains("--train-data") => format!("{config} --train-data voice --checkpoint-dir first"),
        "train" if !example.contains("--checkpoint-dir") => format!("{config} --checkpoint-dir second"),
        "train" | "launch" => config,
        "plan" | "validate" | "doctor" => config,
        "profile" if example.contains("--log") => String::new(),
        "profile" => config,
        "bench" => format!("{config} --steps 2"),
        "synthesize" => " --mode cpu".to_owned(),
        "monitor" if !example.contains("--json") => " --once".to_owned(),
        _ => String::new(),
    }
}

#[test]
fn the_examples_of_every_help_work_as_typed() {
    let folder = folder_of_examples();
    let program = Path::new(env!("CARGO_BIN_EXE_tandem")).parent().unwrap();
    let path = env::join_paths([program.to_owned()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap())));
    let path = path.unwrap();
    let mut tried: Vec<String> = Vec::new();
    for command in COMMANDS {
        let (short, full) = (page(command, "-h"), page(command, "--help"));
        let examples: Vec<&str> =
            full.lines().skip_while(|line| *line != "Examples:").filter_map(|line| line.strip_prefix("  ")).collect();
        assert_eq!(examples.len(), 2, "{full}");
        contains(&short, &examples);
        for example in
            examples.into_iter().filter(|example| !tried.iter().any(|known| known == example)).collect::<Vec<_>>()
        {
            let line = format!("{example}{}", additions(example));
            let output = Command::new("bash")
                .args(["-euc", &line])
                .current_dir(folder.path(""))
                .env_clear()
                .env("PATH", &path)
                .env("LANG", "C.UTF-8")
                .env("HOME", folder.path("home"))
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{line}\n{text}");
            tried.push(example.to_owned());
        }
    }
}

#[test]
fn parameter_counts_are_those_of_the_presets_everywhere() {
    let help = unwrapped(&page("train", "--help"));
    let sizes = help.split("millions of parameters: ").nth(1).unwrap().split(" [values").next().unwrap();
    let sizes: Vec<(&str, &str)> = sizes.split(", ").map(|size| size.split_once(' ').unwrap()).collect();
    assert_eq!(sizes.len(), 5, "{sizes:?}");
    for (name, millions) in &sizes {
        let plan = tandem(&format!("plan --sim 1x80GiB --model-size {name} --batch-size 1"));
        contains(&plan.out, &[&format!("{name} ({millions} million parameters)")]);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = |name: &str| unwrapped(&fs::read_to_string(root.join(name)).unwrap());
    let [(first, count), rest @ ..] = sizes.as_slice() else { panic!("{sizes:?}") };
    let (last, middle) = rest.split_last().unwrap();
    let middle: String = middle.iter().map(|(name, count)| format!(", {name} ({count})")).collect();
    let sentence = format!("The presets are {first} ({count} million parameters){middle} and {} ({}).", last.0, last.1);
    contains(&page("docs/train.md"), &[&sentence]);
    let rounded = |count: &str| count.parse::<f64>().unwrap().round();
    contains(&page("README.md"), &[&format!("with {} to {} million parameters", rounded(count), rounded(last.1))]);
}
