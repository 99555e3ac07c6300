//! Decodes a JPEG through libjpeg-turbo.

use std::io::Read;

use turbojpeg::{Decompressor, Image as Target, PixelFormat, ScalingFactor};

use crate::decode::pixels::colour::ColourModel;
use crate::decode::pixels::image::Image;
use crate::decode::source::{Reader, Reason};

use super::layout::Layout;
use super::segments::{MAX_SCANS, adapted};

/// Decodes a gray or RGB JPEG through libjpeg-turbo, which needs the whole file in memory.
pub(super) fn decode(
    layout: &Layout,
    reader: Reader,
    denominator: usize,
    channels: usize,
) -> Result<(Image, Option<&'static str>), Reason> {
    let pixels = layout.pixels();
    let mut jpeg = vec![];
    let (mut reader, found) = adapted(reader, layout)?;
    reader.read_to_end(&mut jpeg)?;
    let image = decompress(&jpeg, pixels, denominator).map_err(|e| e.to_string())?;
    drop(jpeg);
    let Target { mut pixels, height, width, format, .. } = image;
    let colours = if format == PixelFormat::GRAY { ColourModel::Gray } else { ColourModel::Rgb };
    colours.convert_in_place(&mut pixels, channels);
    Ok((Image { pixels, height, width, channels }, found.first()))
}

fn decompress(jpeg: &[u8], pixels: ColourModel, denominator: usize) -> Result<Target<Vec<u8>>, turbojpeg::Error> {
    let mut decompressor = Decompressor::new()?;
    decompressor.set_scan_limit(MAX_SCANS as u32)?;
    let factor = ScalingFactor::new(1, denominator);
    decompressor.set_scaling_factor(factor)?;
    let header = decompressor.read_header(jpeg)?.scaled(factor);
    let format = if pixels == ColourModel::Gray { PixelFormat::GRAY } else { PixelFormat::RGB };
    let (height, width, pitch) = (header.height, header.width, header.width * pixels.samples());
    let mut image = Target { pixels: vec![0; height * pitch], width, pitch, height, format };
    decompressor.decompress(jpeg, image.as_deref_mut())?;
    Ok(image)
}
