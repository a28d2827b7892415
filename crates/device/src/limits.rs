//! How `auto` limits are computed.

use crate::bytes::{MIB, POOL_GRANULE, round_down};

/// The data role's default share of its card.
pub const DATA_SHARE: f64 = 0.33;
/// The model role's default share of its card.
pub const MODEL_SHARE: f64 = 0.67;
/// The data limit when the card's total cannot be read, and the default without `auto`.
pub const DATA_DEFAULT_MB: u64 = 8192;
/// The model limit when the card's total cannot be read, and the default without `auto`.
pub const MODEL_DEFAULT_MB: u64 = 16384;
/// Left to other processes on a card that both roles share.
const SHARED_RESERVE_MB: u64 = 512;

/// The limit of a role alone on its card: its share of the card's total, or `fallback_mb` if that cannot be read.
pub fn auto_limit_mb(total_bytes: Option<u64>, share: f64, fallback_mb: u64) -> u64 {
    total_bytes.map_or(fallback_mb, |total| ((total / MIB) as f64 * share) as u64)
}

/// The limit of a role on a shared card: its share of the free memory less 512 MB, rounded down to the pools' granularity.
pub fn shared_limit_mb(free_bytes: u64, share: f64) -> u64 {
    let usable = (free_bytes / MIB).saturating_sub(SHARED_RESERVE_MB);
    round_down((usable as f64 * share) as u64 * MIB, POOL_GRANULE) / MIB
}

/// Limits in MB for two roles on two cards of these totals.
///
/// ```
/// use tandem_device::limits::{DATA_SHARE, MODEL_SHARE, optimal_limits};
/// let card = Some(24_576 << 20);
/// assert_eq!(optimal_limits(card, card, DATA_SHARE, MODEL_SHARE), (8110, 16465));
/// assert_eq!(optimal_limits(None, None, DATA_SHARE, MODEL_SHARE), (8192, 16384));
/// ```
pub fn optimal_limits(data_total: Option<u64>, model_total: Option<u64>, data: f64, model: f64) -> (u64, u64) {
    (auto_limit_mb(data_total, data, DATA_DEFAULT_MB), auto_limit_mb(model_total, model, MODEL_DEFAULT_MB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_limits_are_whole_granules_that_fit_together() {
        for free in [6_000, 10_240, 24_217, 81_559, 142_629] {
            let (data, model) = (shared_limit_mb(free * MIB, DATA_SHARE), shared_limit_mb(free * MIB, MODEL_SHARE));
            assert!(data % 32 == 0 && model % 32 == 0, "{free}: {data} {model}");
            assert!(data + model <= free - 512, "{free}: {data} {model}");
        }
        assert_eq!(shared_limit_mb(100 * MIB, DATA_SHARE), 0);
    }
}
