//! Wav files, also of formats that nobody should use.

/// A wav file of any format: `format` 1 is PCM, 3 is float.
pub fn raw_wav(format: u16, channels: u16, rate_hz: u32, bits: u16, data: &[u8]) -> Vec<u8> {
    let frame_bytes = channels * bits / 8;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0");
    file.extend(format.to_le_bytes());
    file.extend(channels.to_le_bytes());
    file.extend(rate_hz.to_le_bytes());
    file.extend((rate_hz * u32::from(frame_bytes)).to_le_bytes());
    file.extend(frame_bytes.to_le_bytes());
    file.extend(bits.to_le_bytes());
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}
