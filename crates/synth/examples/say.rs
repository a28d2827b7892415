//! Synthesises a text on the CPU and prints how long it took.
//!
//! `cargo run --release -p tandem-synth --example say -- CHECKPOINT TEXT OUT.wav`
#![expect(clippy::print_stdout, reason = "the example prints its results")]

use std::error::Error;
use std::fs::File;
use std::time::Instant;

use tandem_device::Machine;
use tandem_synth::{SpeechOptions, Synthesizer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(checkpoint), Some(text), Some(out)) = (args.next(), args.next(), args.next()) else {
        return Err("expected CHECKPOINT TEXT OUT.wav".into());
    };
    let mut synthesizer = Synthesizer::open(checkpoint, Machine::cpu().open(0)?)?;
    let voice = synthesizer.voice(None)?;
    let text = synthesizer.tokenize(&text, None)?;
    // The second run finds its programs compiled.
    for run in ["first", "second"] {
        let start = Instant::now();
        let speech = synthesizer.synthesize(&text, &voice, &SpeechOptions::default())?;
        let (seconds, chunks) = (speech.clip.seconds(), speech.chunks.len());
        println!("{run} run: {seconds:.2} s of speech in {chunks} chunks took {:.2} s", start.elapsed().as_secs_f64());
        tandem_audio::wav::write(&speech.clip, File::create(&out)?)?;
    }
    Ok(())
}
