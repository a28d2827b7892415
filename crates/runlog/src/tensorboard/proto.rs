//! The few protobuf messages TensorBoard reads, encoded by hand: `Event`, `ProtoSummary` and what is in a summary.
//!
//! Field numbers are those of TensorFlow's `event.proto` and `summary.proto`. Nothing here is ever decoded by us.

/// A message being written, field by field.
#[derive(Default)]
pub(crate) struct ProtoMessage(Vec<u8>);

/// How a value lies behind its key.
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Fixed32 = 5,
}

impl ProtoMessage {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// An `int32`, `int64` or enum that is not negative.
    pub(crate) fn number(mut self, field: u32, value: u64) -> Self {
        self.key(field, Wire::Varint);
        self.varint(value);
        self
    }

    pub(crate) fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, Wire::Fixed64);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, Wire::Fixed32);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A `string`, `bytes`, or an encoded message.
    pub(crate) fn part(mut self, field: u32, value: &[u8]) -> Self {
        self.key(field, Wire::Bytes);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn key(&mut self, field: u32, wire: Wire) {
        self.varint(u64::from(field) << 3 | wire as u64);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The first event of a file: which version of the format it is.
pub(crate) fn version_event(wall_s: f64) -> ProtoMessage {
    ProtoMessage::new().double(1, wall_s).part(3, b"brain.Event:2")
}

/// The event that marks a resume at `step`: TensorBoard discards what an earlier start wrote of that step and later ones.
pub(crate) fn start_event(wall_s: f64, step: u64) -> ProtoMessage {
    const START: u64 = 1;
    ProtoMessage::new().double(1, wall_s).number(2, step).part(7, ProtoMessage::new().number(1, START).bytes())
}

/// An event with a summary of several values.
pub(crate) fn summary_event(wall_s: f64, step: u64, summary: &ProtoSummary) -> ProtoMessage {
    ProtoMessage::new().double(1, wall_s).number(2, step).part(5, summary.0.bytes())
}

/// Values by tag. A tag is used for one kind of value only: TensorBoard takes its kind from the first.
#[derive(Default)]
pub(crate) struct ProtoSummary(ProtoMessage);

impl ProtoSummary {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.bytes().is_empty()
    }

    pub(crate) fn scalar(&mut self, tag: &str, value: f32) {
        self.value(ProtoMessage::new().part(1, tag.as_bytes()).float(2, value));
    }

    /// A picture, as a PNG file of that many pixels with colours.
    pub(crate) fn image(&mut self, tag: &str, [width, height]: [u32; 2], png: &[u8]) {
        const RGB: u64 = 3;
        let image = ProtoMessage::new().number(1, height.into()).number(2, width.into()).number(3, RGB).part(4, png);
        self.value(ProtoMessage::new().part(1, tag.as_bytes()).part(4, image.bytes()));
    }

    /// Sound, as a WAV file.
    pub(crate) fn audio(&mut self, tag: &str, sound: &Sound, wav: &[u8]) {
        let audio = ProtoMessage::new()
            .float(1, sound.rate_hz as f32)
            .number(2, sound.channels.into())
            .number(3, sound.frames)
            .part(4, wav)
            .part(5, b"audio/wav");
        self.value(ProtoMessage::new().part(1, tag.as_bytes()).part(6, audio.bytes()));
    }

    fn value(&mut self, value: ProtoMessage) {
        self.0 = std::mem::take(&mut self.0).part(1, value.bytes());
    }
}

/// What TensorBoard wants to know of a WAV file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sound {
    pub(crate) rate_hz: u32,
    pub(crate) channels: u16,
    pub(crate) frames: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_seven_bits_a_byte_lowest_first() {
        let check = |value, expected: &[u8]| assert_eq!(&ProtoMessage::new().number(1, value).bytes()[1..], expected);
        check(0, &[0]);
        check(127, &[0x7F]);
        check(128, &[0x80, 0x01]);
        check(300, &[0xAC, 0x02]);
        check(u64::MAX, &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01]);
    }

    #[test]
    fn a_scalar_event_byte_for_byte() {
        let mut summary = ProtoSummary::default();
        summary.scalar("lr", 1.0);
        let event = summary_event(2.0, 5, &summary);
        let value = [0x0A, 2, b'l', b'r', 0x15, 0, 0, 0x80, 0x3F];
        let expected = [&[0x09, 0, 0, 0, 0, 0, 0, 0, 0x40][..], &[0x10, 5], &[0x2A, 11, 0x0A, 9], &value].concat();
        assert_eq!(event.bytes(), expected);
    }
}
