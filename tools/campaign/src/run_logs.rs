//! Mutated run logs: `monitor` and `profile --log` show what is there, or say what is wrong.

use std::fs;

use crate::case::CaseContext;
use crate::choices::Choices;
use crate::command::CommandSpec;
use crate::fixtures::VARIANTS;
use crate::mutate::{mutate, replace_number};

/// Logs of a case.
const LOGS: usize = 20;

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let variant = *case.choices.pick(&VARIANTS);
    let intact = fs::read(case.reference(variant)?.run.join("run.jsonl"))?;
    for number in 0..LOGS {
        let log = mutated_log(&intact, &mut case.choices);
        // A log alone, or in a run folder.
        let in_folder = case.choices.one_in(3);
        let name = if in_folder { format!("run{number}/run.jsonl") } else { format!("log{number}.jsonl") };
        let shown = name.trim_end_matches("/run.jsonl").to_owned();
        case.write(&name, log)?;
        case.counts.inputs += 1;
        case.run(&CommandSpec::new(&format!("monitor --once {shown}")).bounded())?;
        case.run(&CommandSpec::new(&format!("profile --log {shown}")).bounded())?;
    }
    Ok(())
}

fn mutated_log(intact: &[u8], choices: &mut Choices) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = intact.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    for _ in 0..choices.between(1, 12) {
        if lines.is_empty() {
            break;
        }
        let at = choices.below(lines.len());
        match choices.below(12) {
            0 => drop(lines.remove(at)),
            1 => lines.push(lines[at].clone()),
            2 => {
                let other = choices.below(lines.len());
                lines.swap(at, other);
            }
            3 => lines[at].extend(std::iter::repeat_n(b'x', choices.between(1, 2 << 20))),
            4 => {
                let text = *choices.pick(&["\u{1b}[2J", "\0", "\u{9b}1m", "null", "[[[[[[", "\\u001b[31m\\u0007"]);
                let to = choices.below(lines[at].len() + 1);
                lines[at].splice(to..to, text.bytes());
            }
            5..10 => replace_number(&mut lines[at], choices),
            _ => {
                let other = lines[choices.below(lines.len())].clone();
                mutate(&mut lines[at], &other, 1, choices);
            }
        }
    }
    let mut log = lines.join(&b'\n');
    if choices.one_in(6) {
        log.truncate(choices.below(log.len() + 1));
    }
    log
}
