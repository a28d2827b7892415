//! TFRecord framing: how whole messages lie in a TensorBoard file.
//!
//! Length (8 bytes), its checksum (4), the message, its checksum (4); little endian. A reader that finds less than that
//! waits for the rest, so a file can be read while it grows.

use super::crc32c::masked_crc32c;

/// Appends `message` to `out`, framed.
pub(crate) fn frame_into(message: &[u8], out: &mut Vec<u8>) {
    let length = (message.len() as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_crc32c(&length).to_le_bytes());
    out.extend_from_slice(message);
    out.extend_from_slice(&masked_crc32c(message).to_le_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The messages of a file whose checksums are right, and how many bytes are left over.
    pub(crate) fn unframe(mut file: &[u8]) -> (Vec<Vec<u8>>, usize) {
        let mut messages = Vec::new();
        while let Some((head, rest)) = file.split_at_checked(12) {
            let length = u64::from_le_bytes(head[..8].try_into().unwrap()) as usize;
            assert_eq!(head[8..], masked_crc32c(&head[..8]).to_le_bytes());
            let Some((message, rest)) = rest.split_at_checked(length) else { break };
            let Some((sum, rest)) = rest.split_at_checked(4) else { break };
            assert_eq!(sum, masked_crc32c(message).to_le_bytes());
            messages.push(message.to_vec());
            file = rest;
        }
        (messages, file.len())
    }

    #[test]
    fn a_frame_is_length_sum_message_sum() {
        let mut file = Vec::new();
        frame_into(b"abc", &mut file);
        assert_eq!(file.len(), 8 + 4 + 3 + 4);
        assert_eq!(file[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&file[12..15], b"abc");
        frame_into(b"", &mut file);
        assert_eq!(unframe(&file), (vec![b"abc".to_vec(), b"".to_vec()], 0));
        assert_eq!(unframe(&file[..file.len() - 1]).0.len(), 1);
    }

    #[test]
    fn the_frame_that_begins_a_file_of_tensorflow() {
        // Message and frame as TensorFlow writes them for wall time 0: the version, and nothing else.
        let message = [&[0x09][..], &[0; 8], &[0x1A, 13], b"brain.Event:2"].concat();
        let mut file = Vec::new();
        frame_into(&message, &mut file);
        // 24 bytes long; the checksum of that length is in every such file.
        assert_eq!(file[..12], [0x18, 0, 0, 0, 0, 0, 0, 0, 0xA3, 0x7F, 0x4B, 0x22]);
    }
}
