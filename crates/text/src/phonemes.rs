//! English words to phones: ARPAbet with stress, from a dictionary or, for words it lacks, from their letters.

pub mod phone;
pub mod dictionary;
pub mod features;
pub mod letter_to_sound;
mod word;
mod english;

pub use dictionary::Dictionary;
pub use english::{Phoneme, Pronunciation, speak};
pub use letter_to_sound::LetterToSound;
pub use phone::{Phone, Stress};
pub use word::{PronunciationSource, pronounce};
