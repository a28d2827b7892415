//! Mutated texts and voice references of `synthesize`: a wav file, or an error and no file.

use std::fs;

use crate::audio_files::{base_recordings, mutated_recording};
use crate::case::CaseContext;
use crate::choices::Choices;
use crate::command::CommandSpec;
use crate::fixtures::VARIANTS;
use crate::mutate::mutate;
use crate::tree;

/// Texts and references of a case.
const INPUTS: usize = 8;
const SENTENCES: [&str; 12] = [
    "Hello, world.",
    "In 1867, Dr. Smith paid $12.50 for 3.14 kg!",
    "",
    "\u{1b}[31mred",
    "nul\0nul",
    "中文字",
    "سلام دنیا، ۱۲ کتاب می\u{200c}خواهم",
    "e\u{301}\u{301}\u{301}\u{301}\u{301}",
    "99999999999999999999999999999999999999 1e309 -0 ½ ²",
    "!!!???...---",
    "\u{202e}desrever",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let reference = case.reference(VARIANTS[0])?;
    let newest = crate::fixtures::last_checkpoint(&reference.run);
    tree::copy(&newest, &case.path("checkpoint"))?;
    let bases = base_recordings();
    for _ in 0..INPUTS {
        case.remove("out.wav");
        let (line, input) = match case.choices.one_in(2) {
            true => {
                let text = mutated_text(&mut case.choices);
                case.write("text.txt", text)?;
                ("--text-file text.txt", "text.txt")
            }
            false => {
                let (recording, ..) = mutated_recording(&bases, &mut case.choices);
                case.write("reference.wav", recording)?;
                ("--text Hello. --reference reference.wav", "reference.wav")
            }
        };
        let before = tree::file_digest(&case.path(input))?;
        let rate = *case.choices.pick(&["1", "0.25", "4", "0", "NaN", "1e9"]);
        let line = format!("synthesize --mode cpu --checkpoint checkpoint -o out.wav {line} --speaking-rate {rate}");
        let outcome = case.run(&CommandSpec::new(&line).bounded())?;
        case.counts.inputs += 1;
        if tree::file_digest(&case.path(input))? != before {
            case.fail(format!("{input} was changed"));
        }
        let written = fs::metadata(case.path("out.wav")).map_or(0, |file| file.len());
        match outcome.succeeded() {
            true if written < 44 => case.fail("exit code 0, and no speech was written"),
            false if written > 0 => case.fail("an error, and a file was written"),
            _ => {}
        }
    }
    Ok(())
}

fn mutated_text(choices: &mut Choices) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..choices.between(1, 6) {
        text.extend(choices.pick(&SENTENCES).bytes());
        text.push(*choices.pick(b" \n\t\r"));
    }
    match choices.below(6) {
        0 => text.extend(std::iter::repeat_n(b'a', choices.between(1, 5000))),
        1 => {
            let count = choices.between(1, 3);
            mutate(&mut text, b"\xff\xfe\0", count, choices);
        }
        _ => {}
    }
    text
}
