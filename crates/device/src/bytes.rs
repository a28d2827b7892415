//! Byte counts: allocation granularity, rounding, display.

/// 2²⁰ bytes. "MB" means this in every flag and message.
pub const MIB: u64 = 1 << 20;

/// The driver rounds the cap of a memory pool up to a multiple of this (measured on an H200 with driver 580). We round
/// down to it first, so that the cap is never above the limit.
pub const POOL_GRANULE: u64 = 32 * MIB;

/// Every block starts at a multiple of this: enough for any vector load, and for a whole L2 line.
pub const BLOCK_ALIGN: u64 = 256;

/// `bytes` in MB, rounded up: the smallest limit that fits them.
pub fn mib_ceil(bytes: u64) -> u64 {
    bytes.div_ceil(MIB)
}

/// The largest multiple of `granule` in `bytes`.
pub fn round_down(bytes: u64, granule: u64) -> u64 {
    bytes / granule * granule
}

/// The smallest multiple of `granule` that holds `bytes`.
pub fn round_up(bytes: u64, granule: u64) -> u64 {
    bytes.div_ceil(granule) * granule
}

/// `bytes` for people: `5248 MB`, `7.3 MB`, `12.0 KB`, `80 bytes`.
pub fn show(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..MIB => format!("{:.1} KB", bytes as f64 / 1024.0),
        _ if bytes < 100 * MIB => format!("{:.1} MB", bytes as f64 / MIB as f64),
        _ => format!("{} MB", bytes.div_ceil(MIB)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_meets_its_granule() {
        assert_eq!(round_down(33 * MIB, POOL_GRANULE), 32 * MIB);
        assert_eq!(round_up(33 * MIB, POOL_GRANULE), 64 * MIB);
        assert_eq!(round_down(64 * MIB, POOL_GRANULE), round_up(64 * MIB, POOL_GRANULE));
        assert_eq!(mib_ceil(MIB + 1), 2);
    }

    #[test]
    fn sizes_read_naturally() {
        for (bytes, text) in [(80, "80 bytes"), (12 << 10, "12.0 KB"), (7_654_321, "7.3 MB"), (5248 * MIB, "5248 MB")] {
            assert_eq!(show(bytes), text);
        }
    }
}
