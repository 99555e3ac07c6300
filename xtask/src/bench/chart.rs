//! A pipeline's table as a picture: what each step takes to burn's loop, and its peak.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::case::Group;
use super::results::{Measured, Results};
use super::table::MIB;

const COLOR: RGBColor = RGBColor(180, 75, 30);
const PALE: RGBColor = RGBColor(150, 150, 150);
const INK: RGBColor = RGBColor(34, 34, 34);

const WIDTH: u32 = 760;
const ROW: i32 = 26;
const TOP: i32 = 66;
/// Where labels end and the bars of each panel begin and end.
const LABELS: i32 = 272;
const PANELS: [[i32; 2]; 2] = [[280, 470], [540, 700]];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a group's steps; none when there are none with a ratio.
pub(crate) fn draw(results: &Results, group: Group) -> Result<Option<String>> {
    let cases: Vec<&Measured> = results.group(group.name()).filter(|case| case.ratio.is_some()).collect();
    if cases.is_empty() {
        return Ok(None);
    }
    let mut svg = String::new();
    {
        let height = (TOP + ROW * cases.len() as i32 + 12) as u32;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        panels(&area, &cases, group).map_err(|e| anyhow!("cannot draw {}: {e}", group.name()))?;
    }
    Ok(Some(svg.trim_end().to_owned() + "\n"))
}

fn panels(area: &Area<'_>, cases: &[&Measured], group: Group) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let title = match group {
        Group::Resnet => "A step of the ResNet of `train resnet`",
        Group::Gpt => "A step of the GPT of `train gpt`",
        Group::Function => "Functions",
    };
    write(area, title, [16, 20], 16, HPos::Left)?;
    write(area, "time, to burn's loop, with quartiles", [PANELS[0][0], 48], 12, HPos::Left)?;
    write(area, "peak, MiB", [PANELS[1][0], 48], 12, HPos::Left)?;
    let times = cases.iter().filter_map(|case| case.ratio).map(|ratio| ratio.high).fold(1.0, f64::max);
    let peaks = cases.iter().map(|case| case.peak_bytes).max().unwrap_or(1).max(1) as f64;
    for (index, case) in cases.iter().enumerate() {
        let middle = TOP + ROW * index as i32 + ROW / 2;
        let color = if index == 0 { PALE } else { COLOR };
        write(area, &case.what, [LABELS, middle], 13, HPos::Right)?;
        if let Some(ratio) = case.ratio {
            let at = |value: f64| place(PANELS[0], value / times);
            bar(area, PANELS[0][0], at(ratio.median), middle, color)?;
            let whisker = vec![(at(ratio.low), middle), (at(ratio.high), middle)];
            area.draw(&PathElement::new(whisker, INK.stroke_width(1)))?;
            write(area, &format!("{:.2}", ratio.median), [at(ratio.high) + 6, middle], 12, HPos::Left)?;
        }
        let end = place(PANELS[1], case.peak_bytes as f64 / peaks);
        bar(area, PANELS[1][0], end, middle, color)?;
        write(area, &format!("{:.1}", case.peak_bytes as f64 / MIB), [end + 6, middle], 12, HPos::Left)?;
    }
    area.present()?;
    Ok(())
}

/// The pixel of a part of a panel.
fn place([from, to]: [i32; 2], part: f64) -> i32 {
    from + (f64::from(to - from) * part).round() as i32
}

fn bar(area: &Area<'_>, from: i32, to: i32, middle: i32, color: RGBColor) -> Result<(), Box<dyn std::error::Error>> {
    area.draw(&Rectangle::new([(from, middle - 8), (to, middle + 8)], color.filled()))?;
    Ok(())
}

fn write(
    area: &Area<'_>,
    text: &str,
    [x, y]: [i32; 2],
    size: u32,
    side: HPos,
) -> Result<(), Box<dyn std::error::Error>> {
    let style = TextStyle::from(("sans-serif", size).into_font()).color(&INK).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), (x, y), style))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{measured, results};
    use super::*;

    #[test]
    fn every_step_is_in_the_picture() {
        let results = results(vec![
            measured("gpt/burn", Some(1.0), 10 << 20),
            measured("gpt/step", Some(1.25), 5 << 20),
            measured("function/probe", None, 5 << 20),
        ]);
        let svg = draw(&results, Group::Gpt).unwrap().unwrap();
        for part in ["what gpt/burn does", "what gpt/step does", "1.25", "5.0", "10.0"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert_eq!(draw(&results, Group::Function).unwrap(), None);
    }

    #[test]
    fn bars_end_where_their_part_of_the_panel_does() {
        assert_eq!(place([100, 200], 0.0), 100);
        assert_eq!(place([100, 200], 0.5), 150);
        assert_eq!(place([100, 200], 1.0), 200);
    }
}
