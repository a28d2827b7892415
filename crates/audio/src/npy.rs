//! Writes a table of f32 as `.npy`, numpy's own file format.

use std::io::Write;

use crate::AudioError;

/// What numpy aligns the numbers to.
const ALIGN_BYTES: usize = 64;
/// Magic, version and the length of the header text.
const PREFIX_BYTES: usize = 10;

/// Writes `values` as a 2-D array of `values.len() / num_columns` rows, row after row.
///
/// Fails with [`AudioError::Io`].
///
/// # Panics
///
/// When `values` is not whole rows.
pub fn write(values: &[f32], num_columns: usize, mut out: impl Write) -> Result<(), AudioError> {
    assert!(num_columns > 0 && values.len().is_multiple_of(num_columns), "an array is whole rows");
    let num_rows = values.len() / num_columns;
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({num_rows}, {num_columns}), }}");
    // Spaces up to a line end, so that the numbers start aligned.
    let padded = (PREFIX_BYTES + text.len() + 1).next_multiple_of(ALIGN_BYTES);
    text.extend(std::iter::repeat_n(' ', padded - PREFIX_BYTES - text.len() - 1));
    text.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(text.len() as u16).to_le_bytes())?;
    out.write_all(text.as_bytes())?;
    // The one platform is little-endian, as '<f4' says.
    out.write_all(bytemuck::cast_slice(values))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_for_byte_what_numpy_writes() {
        let mut file = Vec::new();
        write(&[0.0, 1.5, -2.0, 3.25, 1e-5, f32::MAX], 3, &mut file).unwrap();
        assert_eq!(file, include_bytes!("../tests/data/two_by_three.npy"));
    }

    #[test]
    fn the_numbers_start_aligned_whatever_the_shape() {
        for (num_rows, num_columns) in [(0, 80), (1, 1), (999_999, 1), (3, 12_345)] {
            let mut file = Vec::new();
            write(&vec![0.0; num_rows * num_columns], num_columns, &mut file).unwrap();
            assert_eq!((file.len() - 4 * num_rows * num_columns) % ALIGN_BYTES, 0, "{num_rows} x {num_columns}");
        }
    }
}
