//! Mutated config files: a plan, or an error with its line; never a crash.

use crate::case::CaseContext;
use crate::choices::Choices;
use crate::command::CommandSpec;
use crate::mutate::{mutate, replace_number};

/// Config files of a case.
const CONFIGS: usize = 20;
/// Values that a key may be given.
const VALUES: [&str; 22] = [
    "null",
    "~",
    "true",
    "\"\"",
    "-1",
    "0",
    "18446744073709551616",
    "1e308",
    ".nan",
    ".inf",
    "[1, 2, 3]",
    "{a: 1}",
    "!!binary aGVsbG8=",
    "*unknown",
    "&a [*a, *a]",
    "|",
    ">-",
    "\"\\u001b[31m\"",
    "/dev/zero",
    "0x7fffffffffffffff",
    "12:30:45",
    "auto",
];

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    case.copy_corpus()?;
    let printed = case.run(&CommandSpec::new("plan --mode cpu --model-size nano --print-config"))?;
    for _ in 0..CONFIGS {
        let config = mutated_config(&printed.out, &mut case.choices);
        case.write("config.yaml", config)?;
        case.counts.inputs += 1;
        match case.choices.below(12) {
            0 => {
                // Flags override what would make the run long.
                let line = "train --mode cpu --model-size nano --batch-size 2 --max-steps 1 --max-mel-frames 200 \
                            --train-data corpus --checkpoint-dir run --config config.yaml";
                case.run(&CommandSpec::new(line).bounded())?;
                case.remove("run");
            }
            1 => drop(case.run(&CommandSpec::new("plan --sim 2x24GiB --config config.yaml").bounded())?),
            _ => {
                let outcome = case.run(&CommandSpec::new("plan --mode cpu --json --config config.yaml").bounded())?;
                case.document(&outcome);
            }
        }
    }
    Ok(())
}

fn mutated_config(printed: &[u8], choices: &mut Choices) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = printed.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    for _ in 0..choices.between(1, 4) {
        let at = choices.below(lines.len());
        match choices.below(8) {
            0 => drop(lines.remove(at)),
            1 => lines.push(lines[at].clone()),
            2 => lines[at].insert(0, *choices.pick(b" \t-?:")),
            3 => {
                // A nest that a recursive reader cannot follow, or an alias that grows without bound.
                let deep = "[".repeat(choices.between(10, 7000));
                let bomb = "a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, \
                            *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: [*e, *e, *e]";
                lines[at] = if choices.one_in(2) { deep } else { bomb.to_owned() }.into_bytes();
            }
            _ => {
                let value = *choices.pick(&VALUES);
                if let Some(colon) = lines[at].iter().position(|byte| *byte == b':') {
                    lines[at].truncate(colon + 1);
                    lines[at].extend(format!(" {value}").bytes());
                }
            }
        }
    }
    let mut config = lines.join(&b'\n');
    if choices.one_in(3) {
        let count = choices.between(1, 4);
        mutate(&mut config, printed, count, choices);
    }
    if choices.one_in(3) {
        replace_number(&mut config, choices);
    }
    config
}
