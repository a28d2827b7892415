//! Loudness as colour: night, blue, green, straw, white.
//!
//! Every step is as much lighter than the last as the next is than it, so that equal steps of loudness look equal, on
//! paper without colours too.

/// Colours on the way, red, green and blue, at equal distances.
const POINTS: [[u8; 3]; 8] = [
    [6, 8, 24],
    [26, 34, 88],
    [28, 70, 121],
    [19, 110, 135],
    [51, 150, 127],
    [126, 185, 99],
    [211, 213, 102],
    [251, 247, 205],
];

/// The colours of the levels 0 to 255, one behind the other, as the palette of a picture has them.
pub(crate) fn palette() -> Vec<u8> {
    (0..=255).flat_map(colour).collect()
}

fn colour(level: u8) -> [u8; 3] {
    let place = f64::from(level) / 255.0 * (POINTS.len() - 1) as f64;
    let before = (place as usize).min(POINTS.len() - 2);
    let share = place - before as f64;
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
    let (a, b) = (POINTS[before], POINTS[before + 1]);
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
    fn equal_steps_are_equally_lighter() {
        let [darkest, lightest] = [0, 255].map(|level| lightness(colour(level)));
        assert!(darkest < 5.0 && lightest > 95.0);
        for level in 0..=255 {
            let even = darkest + (lightest - darkest) * f64::from(level) / 255.0;
            let found = lightness(colour(level));
            assert!((found - even).abs() < 2.0, "level {level}: lightness {found:.1}, {even:.1} would be even");
        }
    }

    #[test]
    fn a_palette_has_every_level() {
        let palette = palette();
        assert_eq!((palette.len(), &palette[..3], &palette[765..]), (768, &POINTS[0][..], &POINTS[7][..]));
    }
}
