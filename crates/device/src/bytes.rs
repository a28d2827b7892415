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

/// [`show`] of free memory: rounded down, so that what is shown is there.
pub fn show_free(bytes: u64) -> String {
    if bytes < 100 * MIB { show(bytes) } else { format!("{} MB", bytes / MIB) }
}

/// Two counts for people that differ where the counts do: with more digits where [`show`] gives the same text for both.
pub fn show_apart(first: u64, second: u64) -> (String, String) {
    let usual = (show(first), show(second));
    if first == second || usual.0 != usual.1 {
        return usual;
    }
    let (unit, name) = if first.max(second) < MIB { (1024, "KB") } else { (MIB, "MB") };
    let shown = |bytes: u64, digits: usize| format!("{:.digits$} {name}", bytes as f64 / unit as f64);
    let longer = (1..=3).map(|digits| (shown(first, digits), shown(second, digits))).find(|(a, b)| a != b);
    longer.unwrap_or_else(|| (format!("{first} bytes"), format!("{second} bytes")))
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
        assert_eq!((show(200 * MIB + 1), show_free(201 * MIB - 1)), ("201 MB".to_owned(), "200 MB".to_owned()));
    }

    #[test]
    fn different_sizes_are_shown_differently() {
        let check = |first: u64, second: u64, texts: (&str, &str)| {
            assert_eq!(show_apart(first, second), (texts.0.to_owned(), texts.1.to_owned()));
        };
        check(5 << 20, 3 << 20, ("5.0 MB", "3.0 MB"));
        check(3_460_300, 3_470_000, ("3.30 MB", "3.31 MB"));
        check(5 << 10, 5 << 10, ("5.0 KB", "5.0 KB"));
        check(5000, 5010, ("4.88 KB", "4.89 KB"));
        check(5248 * MIB - 1, 5248 * MIB, ("5502926847 bytes", "5502926848 bytes"));
        check(500 * MIB + 1, 501 * MIB, ("500.0 MB", "501.0 MB"));
    }
}
