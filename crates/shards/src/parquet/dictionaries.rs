//! Dictionaries that were read lately.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::byte_values::ByteDictionary;

/// The most dictionaries that are cached.
const MOST_DICTIONARIES: usize = 8;

/// The most bytes of them, uncompressed.
const MOST_CACHED_BYTES: usize = 64 << 20;

/// Dictionaries by the number of their column chunk, the one used last at the back. Bounded in number
/// and in bytes; a dictionary over the limit is not cached.
#[derive(Default)]
pub(super) struct DictionaryCache {
    dictionaries: Mutex<VecDeque<(u32, Arc<ByteDictionary>)>>,
}

impl DictionaryCache {
    pub(super) fn get(&self, chunk: u32) -> Option<Arc<ByteDictionary>> {
        let mut cached = self.dictionaries.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cached.iter().position(|(number, _)| *number == chunk)?;
        let found = cached.remove(at)?;
        let dictionary = Arc::clone(&found.1);
        cached.push_back(found);
        Some(dictionary)
    }

    pub(super) fn put(&self, chunk: u32, dictionary: Arc<ByteDictionary>) {
        if dictionary.num_bytes() > MOST_CACHED_BYTES {
            return;
        }
        let mut cached = self.dictionaries.lock().unwrap_or_else(PoisonError::into_inner);
        cached.retain(|(number, _)| *number != chunk);
        cached.push_back((chunk, dictionary));
        while cached.len() > MOST_DICTIONARIES || size(&cached) > MOST_CACHED_BYTES {
            cached.pop_front();
        }
    }
}

fn size(cached: &VecDeque<(u32, Arc<ByteDictionary>)>) -> usize {
    cached.iter().map(|(_, dictionary)| dictionary.num_bytes()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(num_bytes: usize) -> Arc<ByteDictionary> {
        Arc::new(ByteDictionary::new(vec![0; num_bytes].into(), 1).unwrap())
    }

    #[test]
    fn the_dictionary_used_longest_ago_leaves_first() {
        let cache = DictionaryCache::default();
        (0..8).for_each(|chunk| cache.put(chunk, page(10)));
        assert!(cache.get(0).is_some());
        cache.put(8, page(10));
        assert!(cache.get(0).is_some() && cache.get(8).is_some());
        assert!(cache.get(1).is_none());
    }

    #[test]
    fn the_cache_is_bounded_in_bytes() {
        let cache = DictionaryCache::default();
        cache.put(0, page(40 << 20));
        cache.put(1, page(40 << 20));
        assert!(cache.get(0).is_none() && cache.get(1).is_some());
        cache.put(2, page(65 << 20));
        assert!(cache.get(2).is_none() && cache.get(1).is_some());
    }
}
