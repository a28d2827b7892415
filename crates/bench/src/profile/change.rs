//! Applies the setting change that a diagnosis advises.

use tandem_diagnosis::SettingChange;
use tandem_plan::setting::Id;
use tandem_plan::{SettingError, Settings};

/// `settings` with `change` applied; `None` if the change is not a setting (another card).
pub fn applied(change: SettingChange, settings: &Settings) -> Option<Result<Settings, SettingError>> {
    let places = [Id::Mode, Id::Gpu, Id::ShareGpu, Id::DataGpu, Id::ModelGpu];
    let text = |number: usize| number.to_string();
    let (base, flags) = match change {
        SettingChange::NumWorkers(threads) => (settings.clone(), vec![("num-workers", threads.to_string())]),
        SettingChange::CacheMemory => (settings.clone(), vec![("cache", "memory".to_owned())]),
        SettingChange::TransferHandover => (settings.clone(), vec![("transfer", "handover".to_owned())]),
        SettingChange::TransferPeer => (settings.clone(), vec![("transfer", "peer".to_owned())]),
        SettingChange::BufferSize(batches) => (settings.clone(), vec![("buffer-size", text(batches))]),
        SettingChange::ShareGpu(card) => {
            // Routes other than the hand-over are for two cards.
            let base = settings.without(&places).without(&[Id::Transfer]);
            (base, vec![("share-gpu", String::new()), ("gpu", text(card))])
        }
        SettingChange::SecondCard(card) => {
            let (data, model) = (text(usize::from(card == 0)), text(card));
            let base = settings.without(&places).without(&[Id::Transfer]);
            (base, vec![("data-gpu", data), ("model-gpu", model)])
        }
        SettingChange::OtherDataCard(_) => return None,
    };
    Some(base.with(&flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_applied_flags_are_the_advised_ones() {
        let pair = Settings::new().with(&[("data-gpu", "0"), ("model-gpu", "1"), ("batch-size", "4")]).unwrap();
        let one = Settings::new().with(&[("mode", "single"), ("gpu", "0"), ("batch-size", "4")]).unwrap();
        let check = |settings: &Settings, change: SettingChange| {
            let changed = applied(change, settings).unwrap().unwrap().to_string();
            let said = change.to_string();
            let words = said.split_whitespace().filter(|word| word.starts_with("--"));
            words.for_each(|flag| assert!(changed.contains(flag), "{said}: {changed}"));
            assert!(changed.contains("--batch-size 4"), "the rest stays: {changed}");
            changed
        };
        assert!(check(&one, SettingChange::NumWorkers(6)).contains("--num-workers 6"));
        check(&one, SettingChange::CacheMemory);
        check(&pair, SettingChange::TransferPeer);
        check(&one, SettingChange::BufferSize(24));
        let shared = check(&pair, SettingChange::ShareGpu(1));
        assert!(!shared.contains("--data-gpu") && shared.contains("--gpu 1"), "{shared}");
        let apart = check(&one, SettingChange::SecondCard(0));
        assert!(apart.contains("--data-gpu 1 --model-gpu 0") && !apart.contains("--mode "), "{apart}");
        assert!(applied(SettingChange::OtherDataCard(1), &pair).is_none());
    }
}
