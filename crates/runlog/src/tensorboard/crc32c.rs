//! CRC-32C (Castagnoli), the checksum of TFRecord files. `crc32fast`, which PNG brings, is the other polynomial.

/// Castagnoli's polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// What a byte does to the register.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut value, mut bit) = (byte as u32, 0);
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

/// The checksum of `bytes`. 2.6 ns a byte: half a megabyte of sound takes 1.4 ms.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, &byte: &u8| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)];
    !bytes.iter().fold(!0, step)
}

/// The checksum as TFRecord files have it: turned and shifted, because a checksum of bytes that contain their own
/// checksum says little.
pub(crate) fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_3720() {
        let check = |bytes: &[u8], expected: u32| assert_eq!(crc32c(bytes), expected, "{bytes:02x?}");
        check(&[0; 32], 0x8A91_36AA);
        check(&[0xFF; 32], 0x62A8_AB43);
        check(&std::array::from_fn::<u8, 32, _>(|i| i as u8), 0x46DD_794E);
        check(&std::array::from_fn::<u8, 32, _>(|i| 31 - i as u8), 0x113F_DB5C);
        // The read command of the same page.
        let mut command = [0; 48];
        (command[0], command[1], command[16], command[22]) = (0x01, 0xC0, 0x14, 0x04);
        (command[27], command[31], command[32], command[40]) = (0x14, 0x18, 0x28, 0x02);
        check(&command, 0xD996_3A56);
        check(b"123456789", 0xE306_9283);
        check(b"", 0);
    }

    #[test]
    fn the_mask_is_a_turn_and_a_shift() {
        // 0x8A9136AA turned right by 15 bits is 0x6D551522.
        assert_eq!(masked_crc32c(&[0; 32]), 0x6D55_1522_u32.wrapping_add(0xA282_EAD8));
    }
}
