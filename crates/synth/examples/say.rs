//! Says a text on the CPU, and how fast that went.
//!
//! `cargo run --release -p tandem-synth --example say -- CHECKPOINT TEXT OUT.wav`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

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
    // The second time its programs are there already.
    for time in ["first", "second"] {
        let begun = Instant::now();
        let spoken = synthesizer.speak(&text, &voice, &SpeechOptions::default())?;
        let (seconds, pieces) = (spoken.clip.seconds(), spoken.pieces.len());
        println!(
            "{time} time: {seconds:.2} s of speech in {pieces} pieces took {:.2} s",
            begun.elapsed().as_secs_f64()
        );
        tandem_audio::wav::write(&spoken.clip, File::create(&out)?)?;
    }
    Ok(())
}
