//! `tandem synthesize`: turns text into wav files with a trained model.

mod flags;

// What is read.
mod input;
mod batch_list;

// What speaks.
mod model;
mod voices;

// What is written.
mod wav_file;
mod speak;
mod batch;

use std::process::ExitCode;

use crate::exit::Exit;
use crate::screen::Screen;

pub(crate) use flags::{SynthesizeArgs, command, parse};

pub(crate) fn run(args: &SynthesizeArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    match &args.task {
        flags::SpeechTask::Speak { text, target } => speak::run(args, text, target, screen),
        flags::SpeechTask::Batch { list, folder } => batch::run(args, list, folder, screen),
        flags::SpeechTask::ListSpeakers => voices::list_speakers(args, screen),
    }
}
