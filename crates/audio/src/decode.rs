//! A file's bytes become a clip at the file's own rate: wav, flac, ogg vorbis, mp3, any sample format and channels.
//!
//! In comes anything that reads and seeks, never a path; out goes one channel of `i16` in the caller's [`Clip`]. The
//! bytes alone decide what the file is. Channels are averaged, in f64, and rounded once: to the nearest step, halves
//! to the even one, saturating.
//!
//! A bad file is an [`AudioError`] that says what to do with it, and never a short clip passed off as a whole one.
//! Whatever the bytes claim, at most [`MAX_SAMPLES`] are kept and at most one packet per byte of the file is decoded,
//! so memory and time are bounded by the file.

use std::io::{ErrorKind, Read, Seek};

use symphonia::core::audio::{Audio, GenericAudioBufferRef};
use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_MP3;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::well_known::{FORMAT_ID_FLAC, FORMAT_ID_WAVE};
use symphonia::core::formats::{FormatReader, TrackType};

use crate::clip::{FULL_SCALE, round_to_i16};
use crate::source::{OpenContainer, fenced, in_our_words, open};
use crate::{AudioError, Clip};

/// The most samples a clip may have: an hour and a half at 48 kHz, 512 MiB. An utterance has a thousandth of it.
pub const MAX_SAMPLES: u64 = 1 << 28;

/// What a file says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Samples per second.
    pub rate_hz: u32,
    /// Channels; a clip has their mean.
    pub channels: u32,
    /// Samples per channel, where the container says: in flac, in an ogg that has its end, in a wav that was not piped,
    /// in an mp3 with an encoder's tag. A promise, which only decoding checks.
    pub num_samples: Option<u64>,
}

/// Reads a file's header.
///
/// Cost: the header, for ogg also the last pages; nothing is decoded.
///
/// Fails like [`decode()`], except for what only the samples show.
pub fn probe<S: Read + Seek + Send + Sync>(source: S) -> Result<Header, AudioError> {
    fenced(|| {
        let opened = open(source)?;
        Ok(SoundTrack::find(&*opened.format)?.header)
    })
}

/// Decodes a whole file into `clip`, at the file's rate, as the mean of its channels.
///
/// The clip's memory is reused. On an error it is left empty.
///
/// Fails with [`AudioError::Empty`], [`AudioError::NotAudio`], [`AudioError::Unsupported`],
/// [`AudioError::Truncated`] (fewer samples than the container promises, or an ogg without its end),
/// [`AudioError::Corrupt`], [`AudioError::ZeroLength`], [`AudioError::TooLong`] and [`AudioError::Io`].
pub fn decode<S: Read + Seek + Send + Sync>(source: S, clip: &mut Clip) -> Result<(), AudioError> {
    clip.clear();
    let outcome = fenced(|| {
        let mut opened = open(source)?;
        let track = SoundTrack::find(&*opened.format)?;
        // Trimmed to a length that Symphonia guessed, an mp3 would lose its end.
        let options = AudioDecoderOptions::default().gapless(!track.length_is_a_guess);
        let mut decoder =
            symphonia::default::get_codecs().make_audio_decoder(&track.codec, &options).map_err(in_our_words)?;
        clip.rate_hz = track.header.rate_hz;
        let end = decode_packets(&mut opened, &track, &mut *decoder, &mut clip.samples)?;
        check_whole(&track, clip.samples.len() as u64, end)
    });
    if outcome.is_err() {
        clip.clear();
    }
    outcome
}

/// The track that is decoded, and what it promises.
struct SoundTrack {
    id: u32,
    codec: AudioCodecParameters,
    header: Header,
    /// An mp3 without its encoder's tag: its length is then taken from the bit rate.
    length_is_a_guess: bool,
    /// A wav that was piped has no length and no end mark: it is whole when its bytes end.
    ends_with_bytes: bool,
    /// The largest block of a flac, in samples. Its blocks have checksums, and the reader skips those that do not match.
    flac_block: Option<u64>,
}

impl SoundTrack {
    fn find(format: &dyn FormatReader) -> Result<SoundTrack, AudioError> {
        let unsupported = |what: &str| AudioError::Unsupported { what: what.into() };
        let track =
            format.default_track(TrackType::Audio).ok_or_else(|| unsupported("a file without a sound track"))?;
        let Some(CodecParameters::Audio(codec)) = &track.codec_params else {
            return Err(unsupported("a track of an unknown kind"));
        };
        let rate_hz =
            codec.sample_rate.filter(|&hz| hz > 0).ok_or_else(|| unsupported("a track without a sample rate"))?;
        let channels = codec.channels.as_ref().map_or(0, |channels| channels.count()) as u32;
        let length_is_a_guess = codec.codec == CODEC_ID_MP3 && track.delay.is_none();
        let num_samples = track.num_frames.filter(|_| !length_is_a_guess);
        let ends_with_bytes = format.format_info().format == FORMAT_ID_WAVE && num_samples.is_none();
        let flac_block = (format.format_info().format == FORMAT_ID_FLAC).then(|| max_flac_block(codec));
        let header = Header { rate_hz, channels, num_samples };
        let (id, codec) = (track.id, codec.clone());
        Ok(SoundTrack { id, codec, header, length_is_a_guess, ends_with_bytes, flac_block })
    }
}

/// The largest block size, which is the second field of the header (STREAMINFO).
fn max_flac_block(codec: &AudioCodecParameters) -> u64 {
    let field = codec.extra_data.as_deref().and_then(|header| header.get(2..4)?.try_into().ok());
    field.map_or(0, u16::from_be_bytes).into()
}

/// How the packets ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Marked,
    /// The bytes ran out before the container said so.
    Cut,
}

fn decode_packets(
    opened: &mut OpenContainer<'_>,
    track: &SoundTrack,
    decoder: &mut dyn AudioDecoder,
    samples: &mut Vec<i16>,
) -> Result<End, AudioError> {
    let mut channels: Vec<Vec<f64>> = Vec::new();
    // A packet takes a byte at least; a reader that hands out more of them is going round in circles.
    for _ in 0..=opened.len_bytes {
        let packet = match opened.format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => return Ok(End::Marked),
            Err(Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => return Ok(End::Cut),
            Err(error) => return Err(in_our_words(error)),
        };
        if packet.track_id != track.id {
            continue;
        }
        if track.flac_block.is_some() {
            check_continuous(packet.pts.get(), samples.len())?;
        }
        let sound = match decoder.decode(&packet) {
            Ok(sound) => sound,
            // The bytes of a packet are all here: running out of them inside it is damage.
            Err(Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(AudioError::Corrupt { detail: "a packet ends early".into() });
            }
            Err(error) => return Err(in_our_words(error)),
        };
        append_mean(&sound, &mut channels, samples)?;
        if samples.len() as u64 > MAX_SAMPLES {
            return Err(AudioError::TooLong { limit: MAX_SAMPLES });
        }
    }
    Err(AudioError::Corrupt { detail: "more packets than bytes".into() })
}

/// Fails if blocks before the one that begins at `start` were skipped.
fn check_continuous(start: i64, num_samples: usize) -> Result<(), AudioError> {
    match i64::try_from(num_samples) == Ok(start) {
        true => Ok(()),
        false => Err(AudioError::Corrupt { detail: format!("samples {num_samples} to {start} cannot be decoded") }),
    }
}

/// Appends the mean of the channels. Every sample format is exact in f64, so there is one rounding, the last.
fn append_mean(
    sound: &GenericAudioBufferRef<'_>,
    channels: &mut Vec<Vec<f64>>,
    samples: &mut Vec<i16>,
) -> Result<(), AudioError> {
    if let GenericAudioBufferRef::S16(buffer) = sound
        && buffer.num_planes() == 1
        && let Some(plane) = buffer.plane(0)
    {
        samples.extend_from_slice(plane);
        return Ok(());
    }
    sound.copy_to_vecs_planar(channels);
    let Some((first, others)) = channels.split_first_mut() else { return Ok(()) };
    for other in others.iter() {
        first.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
    }
    if first.iter().any(|x| !x.is_finite()) {
        return Err(AudioError::Corrupt { detail: "a sample is not a number".into() });
    }
    let num_channels = (others.len() + 1) as f64;
    samples.extend(first.iter().map(|sum| round_to_i16(sum * FULL_SCALE / num_channels)));
    Ok(())
}

/// All samples there that were promised?
fn check_whole(track: &SoundTrack, got: u64, end: End) -> Result<(), AudioError> {
    let expected = track.header.num_samples;
    let short = expected.is_some_and(|expected| got < expected);
    // Nothing tells a damaged last block from one that is cut off.
    let block = track.flac_block.unwrap_or(0);
    if let Some(expected) = expected.filter(|expected| short && expected - got <= block) {
        let detail = format!("the last block is wrong or cut off, {got} of {expected} samples could be decoded");
        return Err(AudioError::Corrupt { detail });
    }
    if short || (end == End::Cut && !track.ends_with_bytes) {
        return Err(AudioError::Truncated { got, expected });
    }
    if got == 0 { Err(AudioError::ZeroLength) } else { Ok(()) }
}
