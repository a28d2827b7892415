//! Which cards a process may use, and how `nvidia-smi` and CUDA number them, in words.

use tandem_device::Visibility;

use crate::hardware::Hardware;

/// How the numbers of the cards differ from CUDA's, which cards are hidden, and how to use all of them. `None` if this process
/// may use all cards.
pub fn explain_visibility(hardware: &Hardware) -> Option<String> {
    let Visibility { by, undo, cuda_order, lists_hidden } = hardware.visibility.as_ref()?;
    let numbered = match lists_hidden {
        true => "GPU numbers are those of nvidia-smi",
        false => "Without NVML only visible GPUs are listed, in the order of nvidia-smi",
    };
    let in_cuda = cuda_order.iter().enumerate().map(|(number, card)| format!("GPU {card} is device {number}"));
    let in_cuda = match cuda_order.is_empty() {
        true => "it has no device".to_owned(),
        false => in_cuda.collect::<Vec<_>>().join(", "),
    };
    let hidden = hardware.cards.iter().filter(|facts| facts.card.hidden_by.is_some());
    let hidden: Vec<String> = hidden.map(|facts| facts.card.index.to_string()).collect();
    let hidden = match hidden.as_slice() {
        [] => String::new(),
        [one] => format!("; GPU {one} is hidden"),
        many => format!("; GPUs {} are hidden", many.join(", ")),
    };
    let undo = undo.as_ref().map(|undo| format!("\n   To use all GPUs: {undo}")).unwrap_or_default();
    Some(format!("{numbered}. With {by}, CUDA numbers them differently: {in_cuda}{hidden}{undo}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{gpus, restricted};

    #[test]
    fn both_numbers_of_each_card_are_named_and_the_hidden_ones() {
        let check = |count: usize, order: &[usize], expected: &str| {
            let found = explain_visibility(&restricted(count, order)).unwrap();
            let start =
                "GPU numbers are those of nvidia-smi. With CUDA_VISIBLE_DEVICES=set, CUDA numbers them differently: ";
            let end = "\n   To use all GPUs: unset CUDA_VISIBLE_DEVICES";
            assert_eq!(found, format!("{start}{expected}{end}"));
        };
        check(4, &[3, 1], "GPU 3 is device 0, GPU 1 is device 1; GPUs 0, 2 are hidden");
        check(2, &[1, 0], "GPU 1 is device 0, GPU 0 is device 1");
        check(2, &[0], "GPU 0 is device 0; GPU 1 is hidden");
        check(1, &[], "it has no device; GPU 0 is hidden");
        assert_eq!(explain_visibility(&gpus(2, 24)), None);
    }

    #[test]
    fn nothing_is_advised_about_cards_that_a_container_hides() {
        let mut hardware = restricted(2, &[1]);
        hardware.visibility.as_mut().unwrap().undo = None;
        assert!(!explain_visibility(&hardware).unwrap().contains("To use all GPUs"));
    }
}
