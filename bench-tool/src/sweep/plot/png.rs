//! The canvas of a PNG: pixels, and letters of one size each for titles and for the rest.

use std::convert::Infallible;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontTransform,
};

use crate::exit::Failure;

/// Text at least this large is drawn with the large letters.
const LARGE: f64 = 20.0;

/// Pixels to draw on: red, green and blue of each, row after row.
pub(super) struct Canvas<'a> {
    width: u32,
    height: u32,
    pixels: &'a mut [u8],
}

/// The pixels of a white canvas.
pub(super) fn white((width, height): (u32, u32)) -> Vec<u8> {
    vec![0xff; usize::try_from(width * height * 3).unwrap_or(0)]
}

/// The pixels of a canvas as PNG.
///
/// # Errors
/// When there are not as many as its size says.
pub(super) fn encode((width, height): (u32, u32), pixels: &[u8]) -> Result<Vec<u8>, Failure> {
    let cannot =
        |error: png::EncodingError| Failure::failed("cannot make the picture").because(error);
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().map_err(cannot)?;
    writer.write_image_data(pixels).map_err(cannot)?;
    writer.finish().map_err(cannot)?;
    Ok(bytes)
}

impl<'a> Canvas<'a> {
    pub(super) const fn new((width, height): (u32, u32), pixels: &'a mut [u8]) -> Self {
        Self {
            width,
            height,
            pixels,
        }
    }

    fn pixel(&mut self, (x, y): BackendCoord) -> Option<&mut [u8]> {
        let (x, y) = (u32::try_from(x).ok()?, u32::try_from(y).ok()?);
        if x >= self.width {
            return None;
        }
        let at = usize::try_from(y).ok()? * usize::try_from(self.width).ok()?
            + usize::try_from(x).ok()?;
        self.pixels.get_mut(at * 3..at * 3 + 3)
    }
}

/// The height of the letters for a text of this size.
fn letters(size: f64) -> RasterHeight {
    if size < LARGE {
        RasterHeight::Size16
    } else {
        RasterHeight::Size24
    }
}

/// Width and height of a text in pixels.
fn extent(text: &str, height: RasterHeight) -> (i32, i32) {
    let width = get_raster_width(FontWeight::Regular, height) * text.chars().count();
    (
        i32::try_from(width).unwrap_or(i32::MAX),
        i32::try_from(height.val()).unwrap_or(0),
    )
}

impl DrawingBackend for Canvas<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn ensure_prepared(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn present(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the mean of two bytes is a byte"
    )]
    fn draw_pixel(
        &mut self,
        point: BackendCoord,
        color: BackendColor,
    ) -> Result<(), DrawingErrorKind<Infallible>> {
        let (red, green, blue) = color.rgb;
        for (below, above) in self
            .pixel(point)
            .into_iter()
            .flatten()
            .zip([red, green, blue])
        {
            let mixed = f64::from(*below) * (1.0 - color.alpha) + f64::from(above) * color.alpha;
            *below = mixed.round() as u8;
        }
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        (x, y): BackendCoord,
    ) -> Result<(), DrawingErrorKind<Infallible>> {
        let height = letters(style.size());
        let (wide, high) = extent(text, height);
        let left = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Center => -wide / 2,
            HPos::Right => -wide,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -high / 2,
            VPos::Bottom => -high,
        };
        let step = wide / i32::try_from(text.chars().count()).unwrap_or(1).max(1);
        for (begin, letter) in (0..)
            .step_by(usize::try_from(step).unwrap_or(1))
            .zip(text.chars())
        {
            let Some(raster) = get_raster(letter, FontWeight::Regular, height)
                .or_else(|| get_raster('?', FontWeight::Regular, height))
            else {
                continue;
            };
            for (row, line) in (top..).zip(raster.rows()) {
                for (column, shade) in (left + begin..).zip(line.iter()) {
                    let (dx, dy) = style.transform().transform(column, row);
                    let color = style.color();
                    let alpha = color.alpha * f64::from(*shade) / 255.0;
                    self.draw_pixel((x + dx, y + dy), BackendColor { alpha, ..color })?;
                }
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let (wide, high) = extent(text, letters(style.size()));
        let (wide, high) = (wide.unsigned_abs(), high.unsigned_abs());
        Ok(match style.transform() {
            FontTransform::Rotate90 | FontTransform::Rotate270 => (high, wide),
            FontTransform::None | FontTransform::Rotate180 => (wide, high),
        })
    }
}
