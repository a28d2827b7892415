//! The PCI link and the NUMA node of a card, as Linux lists them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tandem_device::pci_folder;

/// Link and NUMA node of the card at `bus_id`; `null` for what cannot be read. `root` is `/`, except in tests.
pub(super) fn read(root: &Path, bus_id: &str) -> Value {
    let folder = pci_folder(root, bus_id);
    let text = |name: &str| {
        let text = fs::read_to_string(folder.as_ref()?.join(name)).ok()?;
        Some(text.trim().to_owned())
    };
    // Linux writes -1 for a machine with one node.
    let numa_node = text("numa_node").and_then(|node| node.parse::<u32>().ok());
    json!({
        "link_speed": text("current_link_speed"),
        "link_width": text("current_link_width"),
        "max_link_speed": text("max_link_speed"),
        "max_link_width": text("max_link_width"),
        "numa_node": numa_node,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_and_node_are_read_from_the_folder_of_the_card() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/bus/pci/devices/0000:af:00.0");
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in
            [("current_link_speed", "16.0 GT/s PCIe\n"), ("current_link_width", "8\n"), ("numa_node", "1\n")]
        {
            fs::write(folder.join(name), text).unwrap();
        }
        let found = read(root.path(), "00000000:AF:00.0");
        let expected = json!({
            "link_speed": "16.0 GT/s PCIe",
            "link_width": "8",
            "max_link_speed": null,
            "max_link_width": null,
            "numa_node": 1,
        });
        assert_eq!(found, expected);
        fs::write(folder.join("numa_node"), "-1\n").unwrap();
        assert_eq!(read(root.path(), "0000:af:00.0")["numa_node"], Value::Null);
        assert_eq!(read(root.path(), "0000:b0:00.0")["link_speed"], Value::Null);
    }
}
