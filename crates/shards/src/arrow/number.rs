//! Numbers of all widths, little-endian.

use arrow_ipc::{Field, Int, Precision, Type};

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberFormat {
    Int { num_bytes: usize, is_signed: bool },
    F16,
    F32,
    F64,
}

impl NumberFormat {
    /// The format of a field, if it holds numbers.
    pub(super) fn of(field: &Field<'_>) -> Option<NumberFormat> {
        match field.type_type() {
            Type::Int => NumberFormat::of_int(&field.type_as_int()?),
            Type::FloatingPoint => match field.type_as_floating_point()?.precision() {
                Precision::HALF => Some(NumberFormat::F16),
                Precision::SINGLE => Some(NumberFormat::F32),
                Precision::DOUBLE => Some(NumberFormat::F64),
                _ => None,
            },
            _ => None,
        }
    }

    /// The format of an integer type, if its width is one of the usual ones.
    pub(super) fn of_int(int: &Int<'_>) -> Option<NumberFormat> {
        let num_bytes = match int.bitWidth() {
            8 => 1,
            16 => 2,
            32 => 4,
            64 => 8,
            _ => return None,
        };
        Some(NumberFormat::Int { num_bytes, is_signed: int.is_signed() })
    }

    /// The size of a number.
    pub(super) fn num_bytes(self) -> usize {
        match self {
            NumberFormat::Int { num_bytes, .. } => num_bytes,
            NumberFormat::F16 => 2,
            NumberFormat::F32 => 4,
            NumberFormat::F64 => 8,
        }
    }

    /// Number `index` of `bytes`. Integers beyond 2^53 are rounded.
    pub(super) fn get(self, bytes: &[u8], index: usize) -> Option<f64> {
        Some(match self {
            NumberFormat::Int { .. } => self.get_int(bytes, index)? as f64,
            NumberFormat::F16 => half_to_f64(u16::from_le_bytes(nth(bytes, index)?)),
            NumberFormat::F32 => f64::from(f32::from_le_bytes(nth(bytes, index)?)),
            NumberFormat::F64 => f64::from_le_bytes(nth(bytes, index)?),
        })
    }

    /// Integer `index` of `bytes`, exactly.
    pub(super) fn get_int(self, bytes: &[u8], index: usize) -> Option<i128> {
        let NumberFormat::Int { num_bytes, is_signed } = self else { return None };
        Some(match (num_bytes, is_signed) {
            (1, true) => i8::from_le_bytes(nth(bytes, index)?).into(),
            (1, false) => u8::from_le_bytes(nth(bytes, index)?).into(),
            (2, true) => i16::from_le_bytes(nth(bytes, index)?).into(),
            (2, false) => u16::from_le_bytes(nth(bytes, index)?).into(),
            (4, true) => i32::from_le_bytes(nth(bytes, index)?).into(),
            (4, false) => u32::from_le_bytes(nth(bytes, index)?).into(),
            (_, true) => i64::from_le_bytes(nth(bytes, index)?).into(),
            (_, false) => u64::from_le_bytes(nth(bytes, index)?).into(),
        })
    }
}

/// Group `index` of `N` bytes.
pub(super) fn nth<const N: usize>(bytes: &[u8], index: usize) -> Option<[u8; N]> {
    let start = index.checked_mul(N)?;
    bytes.get(start..start.checked_add(N)?)?.try_into().ok()
}

fn half_to_f64(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1F), f64::from(bits & 0x3FF));
    sign * match (exponent, fraction) {
        (0, _) => fraction * 2f64.powi(-24),
        (31, 0.0) => f64::INFINITY,
        (31, _) => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision() {
        let check = |bits, expected: f64| assert_eq!(half_to_f64(bits).to_bits(), expected.to_bits(), "{bits:#x}");
        check(0x0000, 0.0);
        check(0x8000, -0.0);
        check(0x3C00, 1.0);
        check(0xC500, -5.0);
        check(0x7BFF, 65504.0);
        check(0x0001, 2f64.powi(-24));
        check(0x7C00, f64::INFINITY);
        assert!(half_to_f64(0x7E00).is_nan());
    }

    #[test]
    fn integers_of_all_widths() {
        let check = |num_bytes, is_signed, expected: i128| {
            let format = NumberFormat::Int { num_bytes, is_signed };
            let bytes = [[0; 8], [0xFF; 8]].concat();
            assert_eq!(format.get_int(&bytes, 16 / num_bytes - 1), Some(expected));
            assert_eq!(format.get_int(&bytes, 16 / num_bytes), None);
        };
        check(1, true, -1);
        check(1, false, 0xFF);
        check(2, true, -1);
        check(2, false, 0xFFFF);
        check(4, true, -1);
        check(4, false, 0xFFFF_FFFF);
        check(8, true, -1);
        check(8, false, u64::MAX.into());
    }
}
