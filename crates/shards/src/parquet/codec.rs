//! How pages are compressed.
//!
//! Pages are decompressed here and not by the `parquet` crate, which decompresses gzip to its end before it compares
//! sizes: a small page would fill the memory.

use std::io::Read;

use flate2::read::MultiGzDecoder;

use crate::fault::ShardFault;

/// A codec that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageCodec {
    Uncompressed,
    Snappy,
    Gzip,
    Zstd,
    Lz4Raw,
}

/// In the order of their numbers in a page table.
const CODECS: [PageCodec; 5] =
    [PageCodec::Uncompressed, PageCodec::Snappy, PageCodec::Gzip, PageCodec::Zstd, PageCodec::Lz4Raw];

impl PageCodec {
    /// The codec with this number in the format, or advice if it is not read.
    pub(super) fn of(number: u32, column: &str) -> Result<PageCodec, ShardFault> {
        let name = match number {
            0 => return Ok(PageCodec::Uncompressed),
            1 => return Ok(PageCodec::Snappy),
            2 => return Ok(PageCodec::Gzip),
            6 => return Ok(PageCodec::Zstd),
            7 => return Ok(PageCodec::Lz4Raw),
            3 => "LZO",
            4 => "Brotli",
            // Three framings are in use, and a reader has to guess which one it is.
            5 => "the deprecated LZ4 framing",
            _ => "an unknown codec",
        };
        let reason = format!(
            "column `{column}` is compressed with {name}, which is not read; write the file again with zstd, snappy, \
             gzip, LZ4_RAW or no compression"
        );
        Err(ShardFault::Unsupported { reason })
    }

    /// Decompresses `bytes` into `out`, which they must fill exactly. Never writes or reserves more than `out`.
    pub(super) fn decompress(self, bytes: &[u8], out: &mut [u8]) -> Result<(), String> {
        let size = out.len();
        let found = match self {
            PageCodec::Uncompressed if bytes.len() == size => {
                out.copy_from_slice(bytes);
                Ok(size)
            }
            PageCodec::Uncompressed => Ok(bytes.len()),
            PageCodec::Snappy => snap::raw::Decoder::new().decompress(bytes, out).map_err(|error| error.to_string()),
            PageCodec::Gzip => gunzip(bytes, out).map_err(|error| error.to_string()),
            PageCodec::Zstd => zstd::bulk::decompress_to_buffer(bytes, out).map_err(|error| error.to_string()),
            PageCodec::Lz4Raw => lz4_flex::block::decompress_into(bytes, out).map_err(|error| error.to_string()),
        };
        match found {
            Ok(found) if found == size => Ok(()),
            Ok(found) => Err(format!("expected {size} bytes after decompression ({self:?}), found {found}")),
            Err(reason) => Err(format!("expected {size} bytes after decompression ({self:?}): {reason}")),
        }
    }

    /// Its number in a page table.
    pub(super) fn number(self) -> u8 {
        CODECS.iter().position(|codec| *codec == self).unwrap_or_default() as u8
    }

    pub(super) fn from_number(number: u8) -> Option<PageCodec> {
        CODECS.get(usize::from(number)).copied()
    }

    /// The most that `compressed` bytes can become: a page that claims more lies.
    pub(super) fn most_uncompressed(self, compressed: u64) -> u64 {
        let factor = match self {
            PageCodec::Uncompressed => 1,
            // A copy of 64 bytes takes at least two.
            PageCodec::Snappy => 64,
            // A byte of match length stands for 255.
            PageCodec::Lz4Raw => 256,
            // A match of 258 bytes takes at least two bits.
            PageCodec::Gzip => 1032,
            // A block of 128 KiB takes at least three bytes.
            PageCodec::Zstd => 65_536,
        };
        compressed.saturating_mul(factor)
    }
}

/// Fills `out` and looks whether more would come.
fn gunzip(bytes: &[u8], out: &mut [u8]) -> std::io::Result<usize> {
    let mut decoder = MultiGzDecoder::new(bytes);
    decoder.read_exact(out)?;
    // Also reads the checksum at the end.
    let more = decoder.read(&mut [0])?;
    Ok(out.len() + more)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn compress(codec: PageCodec, bytes: &[u8]) -> Vec<u8> {
        match codec {
            PageCodec::Uncompressed => bytes.to_vec(),
            PageCodec::Snappy => snap::raw::Encoder::new().compress_vec(bytes).unwrap(),
            PageCodec::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            PageCodec::Zstd => zstd::bulk::compress(bytes, 1).unwrap(),
            PageCodec::Lz4Raw => lz4_flex::block::compress(bytes),
        }
    }

    #[test]
    fn a_page_becomes_exactly_the_size_it_claims_or_is_a_fault() {
        let bytes: Vec<u8> = (0..1000_u32).map(|i| (i * i / 100) as u8).collect();
        for codec in CODECS {
            let compressed = compress(codec, &bytes);
            let decompress = |bytes: &[u8], size: usize| {
                let mut out = vec![0; size];
                codec.decompress(bytes, &mut out).map(|()| out)
            };
            assert_eq!(decompress(&compressed, 1000), Ok(bytes.clone()), "{codec:?}");
            for size in [0, 1, 999, 1001, 100_000] {
                assert!(decompress(&compressed, size).is_err(), "{codec:?} claims {size}");
            }
            assert!(decompress(&compressed[..compressed.len() - 1], 1000).is_err(), "{codec:?} is cut short");
            assert!(decompress(&[], 1000).is_err(), "{codec:?} without bytes");
        }
    }

    #[test]
    fn a_bomb_writes_no_more_than_it_claims() {
        let bytes = vec![0; 32 << 20];
        for codec in CODECS {
            let compressed = compress(codec, &bytes);
            assert!(codec.most_uncompressed(compressed.len() as u64) >= bytes.len() as u64, "{codec:?}");
            assert!(codec.decompress(&compressed, &mut [0; 100]).is_err(), "{codec:?}");
        }
    }

    #[test]
    fn a_codec_comes_back_from_its_number() {
        for codec in CODECS {
            assert_eq!(PageCodec::from_number(codec.number()), Some(codec));
        }
        assert_eq!(PageCodec::from_number(5), None);
    }
}
