//! Rows of a batch, of different lengths in one tensor: how kernels address them, and the checks before a launch.

use tandem_device::{DeviceError, View};

/// Where each row begins, and the end of the last one: one number more than there are rows. They are constants of a
/// shape, computed once.
#[derive(Clone, Copy, Debug)]
pub struct Starts<'a> {
    /// The numbers: 0 first, and none below the one before it.
    pub host: &'a [u32],
    /// The same numbers in device memory, u32. The caller guarantees that they are the same.
    pub device: View<'a>,
}

/// Rows of samples.
#[derive(Clone, Copy, Debug)]
pub struct SampleRows<'a> {
    /// The samples, i16.
    pub samples: View<'a>,
    /// Where each row begins, in samples.
    pub starts: Starts<'a>,
    /// Samples of each row, u32. The rest of its room is not read.
    pub lengths: View<'a>,
}

impl Starts<'_> {
    pub(super) fn num_rows(&self) -> usize {
        self.host.len().saturating_sub(1)
    }

    pub(super) fn end(&self) -> u32 {
        self.host.last().copied().unwrap_or(0)
    }

    /// Kernels trust these numbers, so they are checked here: `rows` rows that begin at multiples of `step`.
    pub(super) fn check(&self, kernel: &'static str, name: &str, rows: usize, step: u32) -> Result<(), DeviceError> {
        let refused = |problem: String| Err(DeviceError::Arguments { kernel, problem });
        if self.num_rows() != rows {
            return refused(format!("{name} have {} rows, and others {rows}", self.num_rows()));
        }
        let rising = self.host.first() == Some(&0) && self.host.windows(2).all(|pair| pair[0] <= pair[1]);
        if !rising || !self.host.iter().all(|start| start.is_multiple_of(step)) {
            return refused(format!("rows of {name} do not begin in ascending order at multiples of {step}"));
        }
        check_elements(kernel, &format!("the starts of {name}"), self.device, 4, self.host.len() as u64)
    }
}

impl SampleRows<'_> {
    /// Checks the rows, and that the memory holds all samples.
    pub(super) fn check(&self, kernel: &'static str, name: &str, rows: usize, step: u32) -> Result<(), DeviceError> {
        self.starts.check(kernel, name, rows, step)?;
        // Kernels index the samples of a row, and the reflect padding, in 31 bits.
        let longest = self.starts.host.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        if longest > 1 << 30 {
            let problem = format!("rows of {longest} samples are longer than {}", 1 << 30);
            return Err(DeviceError::Arguments { kernel, problem });
        }
        check_elements(kernel, name, self.samples, 2, self.starts.end().into())?;
        check_elements(kernel, "the lengths", self.lengths, 4, rows as u64)
    }
}

/// Kernels trust sizes, so they are compared with the memory.
pub(super) fn check_elements(
    kernel: &'static str,
    name: &str,
    view: View<'_>,
    element_bytes: u64,
    elements: u64,
) -> Result<(), DeviceError> {
    match elements.checked_mul(element_bytes) {
        Some(needed) if needed <= view.bytes() => Ok(()),
        _ => {
            let problem =
                format!("{name} need {elements} elements of {element_bytes} bytes, given {} bytes", view.bytes());
            Err(DeviceError::Arguments { kernel, problem })
        }
    }
}
