//! A legend as an image: names of classes beside their colours.

use std::convert::Infallible;

use embedded_graphics::Drawable;
use embedded_graphics::Pixel;
use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::iso_8859_1::FONT_7X13;
use embedded_graphics::pixelcolor::BinaryColor;
use embedded_graphics::text::{Baseline, Text};
use image::{Rgb, RgbImage};

/// Rows of an entry, and the side of its square.
const ROW: u32 = 18;
const SQUARE: u32 = 12;
/// Columns around the square, and of a letter.
const MARGIN: u32 = 6;
const LETTER: u32 = 7;
/// The most letters of a name.
const LETTERS: usize = 40;

/// Draws an entry for each of `classes`, a colour and a text, from top to bottom. Each pixel of the font is `scale` pixels. Letters
/// beyond Latin-1 are question marks.
pub(super) fn legend(classes: &[(Rgb<u8>, String)], scale: u32) -> RgbImage {
    let letters = classes.iter().map(|(_, text)| text.chars().count().min(LETTERS)).max().unwrap_or(0) as u32;
    let size = [3 * MARGIN + SQUARE + letters * LETTER, MARGIN + ROW * classes.len() as u32];
    let mut canvas = Canvas(RgbImage::from_pixel(size[0], size[1], Rgb([255; 3])));
    for (row, (colour, text)) in classes.iter().enumerate() {
        let top = MARGIN / 2 + ROW * row as u32;
        let square = RgbImage::from_pixel(SQUARE, SQUARE, *colour);
        image::imageops::replace(&mut canvas.0, &square, MARGIN.into(), (top + (ROW - SQUARE) / 2).into());
        let text: String = text.chars().take(LETTERS).collect();
        let at = Point::new((2 * MARGIN + SQUARE) as i32, (top + ROW / 2) as i32);
        let style = MonoTextStyle::new(&FONT_7X13, BinaryColor::On);
        let Ok(_) = Text::with_baseline(&text, at, style, Baseline::Middle).draw(&mut canvas);
    }
    match scale {
        1 => canvas.0,
        _ => image::imageops::resize(&canvas.0, size[0] * scale, size[1] * scale, image::imageops::FilterType::Nearest),
    }
}

/// An image that the font is drawn on in black.
struct Canvas(RgbImage);

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(self.0.width(), self.0.height())
    }
}

impl DrawTarget for Canvas {
    type Color = BinaryColor;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<BinaryColor>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        for Pixel(Point { x, y }, colour) in pixels {
            let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { continue };
            if colour == BinaryColor::On
                && let Some(pixel) = self.0.get_pixel_mut_checked(x, y)
            {
                *pixel = Rgb([0; 3]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::{MARGIN, ROW, SQUARE, legend};

    #[test]
    fn each_class_has_its_colour_and_letters() {
        let classes = [(Rgb([200, 0, 0]), "eau".to_owned()), (Rgb([0, 0, 200]), "forêt".to_owned())];
        let drawn = legend(&classes, 1);
        for (row, (colour, _)) in classes.iter().enumerate() {
            let middle = MARGIN / 2 + ROW * row as u32 + ROW / 2;
            assert_eq!(drawn.get_pixel(MARGIN + SQUARE / 2, middle), colour);
        }
        let black = |image: &image::RgbImage| image.pixels().filter(|pixel| pixel.0 == [0; 3]).count();
        assert!(black(&drawn) > 50, "{}", black(&drawn));
        let large = legend(&classes, 2);
        assert_eq!((large.width(), large.height()), (2 * drawn.width(), 2 * drawn.height()));
        assert_eq!(black(&large), 4 * black(&drawn));
    }
}
