//! The colormap of spectrograms: dark blue, blue, green, yellow, white.
//!
//! It is perceptually uniform in lightness: equal steps of loudness look equal, also in greyscale.

/// Evenly spaced colours, as red, green and blue.
const STOPS: [[u8; 3]; 8] = [
    [6, 8, 24],
    [26, 34, 88],
    [28, 70, 121],
    [19, 110, 135],
    [51, 150, 127],
    [126, 185, 99],
    [211, 213, 102],
    [251, 247, 205],
];

/// The colours of the levels 0 to 255, in the layout of a PNG palette.
pub(crate) fn palette() -> Vec<u8> {
    (0..=255).flat_map(color).collect()
}

fn color(level: u8) -> [u8; 3] {
    let position = f64::from(level) / 255.0 * (STOPS.len() - 1) as f64;
    let before = (position as usize).min(STOPS.len() - 2);
    let fraction = position - before as f64;
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * fraction).round() as u8;
    let (a, b) = (STOPS[before], STOPS[before + 1]);
    [mix(a[0], b[0]), mix(a[1], b[1]), mix(a[2], b[2])]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CIE lightness, 0 to 100.
    fn lightness(rgb: [u8; 3]) -> f64 {
        let linear = |part: u8| match f64::from(part) / 255.0 {
            part if part <= 0.04045 => part / 12.92,
            part => ((part + 0.055) / 1.055).powf(2.4),
        };
        let luminance = 0.2126 * linear(rgb[0]) + 0.7152 * linear(rgb[1]) + 0.0722 * linear(rgb[2]);
        if luminance > 0.008856 { 116.0 * luminance.cbrt() - 16.0 } else { 903.3 * luminance }
    }

    #[test]
    fn lightness_is_linear() {
        let [darkest, lightest] = [0, 255].map(|level| lightness(color(level)));
        assert!(darkest < 5.0 && lightest > 95.0);
        for level in 0..=255 {
            let even = darkest + (lightest - darkest) * f64::from(level) / 255.0;
            let found = lightness(color(level));
            assert!((found - even).abs() < 2.0, "level {level}: lightness {found:.1}, linear would be {even:.1}");
        }
    }

    #[test]
    fn the_palette_has_every_level() {
        let palette = palette();
        assert_eq!((palette.len(), &palette[..3], &palette[765..]), (768, &STOPS[0][..], &STOPS[7][..]));
    }
}
