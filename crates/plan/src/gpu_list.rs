//! How a user names the GPUs of a data-parallel run: `all`, or a list of names.

use std::fmt;

use crate::gpu_name::GpuName;

/// The value of `--gpus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuList {
    /// Every GPU that this process can use.
    All,
    /// These, one rank on each, in this order.
    Named(Vec<GpuName>),
}

impl GpuList {
    /// Parses `all` or names with commas between them; `None` for anything else.
    pub fn parse(text: &str) -> Option<GpuList> {
        if text == "all" {
            return Some(GpuList::All);
        }
        text.split(',').map(|name| GpuName::parse(name.trim())).collect::<Option<_>>().map(GpuList::Named)
    }
}

impl fmt::Display for GpuList {
    /// As a flag or a config file takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuList::All => f.write_str("all"),
            GpuList::Named(names) => f.write_str(&names.iter().map(GpuName::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_or_names() {
        let check = |text: &str, expected: Option<GpuList>| assert_eq!(GpuList::parse(text), expected, "{text:?}");
        let index = GpuName::Index;
        check("all", Some(GpuList::All));
        check("0", Some(GpuList::Named(vec![index(0)])));
        check("3, 1,GPU-8f2d", Some(GpuList::Named(vec![index(3), index(1), GpuName::Uuid("GPU-8f2d".to_owned())])));
        for wrong in ["", ",", "0,", "0 1", "ALL", "all,1", "-1"] {
            check(wrong, None);
        }
    }

    #[test]
    fn a_list_prints_as_it_is_typed() {
        for text in ["all", "0", "3,1,GPU-8f2d"] {
            assert_eq!(GpuList::parse(text).unwrap().to_string(), text);
        }
    }
}
