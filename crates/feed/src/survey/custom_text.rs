//! Texts in the hands of the program that reads the batches: its own tokenizer, or a change of each text before ours.

use std::fmt;
use std::sync::Arc;

/// A tokenizer of the program's own. Decode threads call it, several at a time.
pub trait CustomTokenizer: Send + Sync {
    /// The ids of a text; `lang` is the language that its row names. An error is one of this row only.
    fn encode(&self, text: &str, lang: Option<&str>) -> Result<Vec<i32>, String>;
}

/// A change of each text before it is tokenized. Decode threads call it, several at a time.
pub trait TextMap: Send + Sync {
    /// The text to tokenize instead. An error is one of this row only.
    fn map(&self, text: &str, lang: Option<&str>) -> Result<String, String>;
}

/// What the program does to texts itself. Equal only to its own clones: code cannot be compared.
#[derive(Clone, Default)]
pub struct CustomText {
    /// Its tokenizer, in place of the front ends.
    pub encoder: Option<Arc<dyn CustomTokenizer>>,
    /// Its change of texts.
    pub map: Option<Arc<dyn TextMap>>,
    /// The id that fills a row after its text; none: that of our symbol tables.
    pub pad: Option<i32>,
}

impl PartialEq for CustomText {
    fn eq(&self, other: &CustomText) -> bool {
        fn same<T: ?Sized>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
            match (a, b) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            }
        }
        same(self.encoder.as_ref(), other.encoder.as_ref())
            && same(self.map.as_ref(), other.map.as_ref())
            && self.pad == other.pad
    }
}

impl fmt::Debug for CustomText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CustomText { encoder, map, pad } = self;
        f.debug_struct("CustomText")
            .field("encoder", &encoder.is_some())
            .field("map", &map.is_some())
            .field("pad", pad)
            .finish()
    }
}
