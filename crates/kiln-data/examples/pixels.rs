//! Decodes images at their own size to RGB, for scripts that compare the pixels with another library's.
//!
//! Reads a path from each line of stdin. Answers each with a line and, after `ok`, with the pixels in bytes:
//! `ok HEIGHT WIDTH` or `error REASON`.

use std::error::Error;
use std::io::{self, BufRead, Write};

use kiln_data::{DecodeOptions, Image, ImageFile, Oversized, View};

fn decode(path: &str) -> Result<Image, kiln_data::Error> {
    let file = ImageFile::open(path)?;
    let view = View::whole(file.header().height, file.header().width);
    let options = DecodeOptions::new().with_limit(4 << 30).with_oversized(Oversized::Refuse);
    let plan = file.plan(&view, 3, &options)?;
    file.decode(&plan)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    for path in io::stdin().lock().lines() {
        match decode(&path?) {
            Ok(image) => {
                writeln!(out, "ok {} {}", image.height, image.width)?;
                out.write_all(&image.pixels)?;
            }
            Err(error) => writeln!(out, "error {}", error.to_string().replace('\n', " "))?,
        }
        out.flush()?;
    }
    Ok(())
}
