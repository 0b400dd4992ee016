//! Both formats show the same shapes, where they were asked for.

use annulus_figure::{Axis, Curves, Heatmap, Picture, Point, Series};

/// Rows of pixels, decoded.
fn pixels(picture: &Picture) -> Vec<Vec<[u8; 3]>> {
    let png = picture.to_png().expect("a file");
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().expect("a header");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a size")];
    let frame = reader.next_frame(&mut bytes).expect("pixels");
    assert_eq!([frame.width, frame.height], [picture.width, picture.height]);
    let rows = bytes.chunks(3 * frame.width as usize);
    rows.map(|row| row.chunks(3).map(|p| [p[0], p[1], p[2]]).collect()).collect()
}

fn map(cells: Vec<Vec<Option<f64>>>) -> Picture {
    let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>();
    let (columns, rows) = (names(cells[0].len()), names(cells.len()));
    let (title, x, y) = ("a < b".to_owned(), "length".to_owned(), "depth".to_owned());
    Heatmap { title, x, y, columns, rows, cells }.picture()
}

#[test]
fn a_cell_has_the_color_of_its_number_in_both_formats() {
    let picture = map(vec![vec![Some(0.0), Some(1.0)], vec![None, Some(0.5)]]);
    let (pixels, svg) = (pixels(&picture), picture.to_svg());
    // The left upper quarter of the cells, clear of their numbers.
    let at = |row: usize, column: usize| pixels[70 + row * 34 + 4][110 + column * 320 + 8];
    let found = [at(0, 0), at(0, 1), at(1, 0), at(1, 1)];
    let wanted = [[0x44, 0x01, 0x54], [0xfd, 0xe7, 0x25], [0xdd; 3], [0x21, 0x91, 0x8c]];
    assert_eq!(found, wanted);
    for [red, green, blue] in wanted {
        assert!(svg.contains(&format!("fill=\"#{red:02x}{green:02x}{blue:02x}\"")));
    }
    assert!(svg.contains("a &lt; b") && svg.contains(">50</text>"));
    assert_eq!(svg.matches("<text").count(), 3 + 3 + 4);
}

#[test]
fn a_curve_goes_through_its_points() {
    let point = |x: f64, y: f64| Point { x, y, error: 0.25 };
    let points = vec![point(1024.0, 3.0), point(2048.0, 2.0), point(4096.0, 1.0)];
    let series = vec![Series { name: "loss".to_owned(), points }];
    let (title, x, y) = ("t".to_owned(), Axis::logarithmic("tokens"), Axis::plain("loss"));
    let picture = Curves { title, x, y, series }.picture();
    let pixels = pixels(&picture);
    let blue = [0x00, 0x72, 0xb2];
    // The middle of the field: lengths are spread by factors.
    assert_eq!(pixels[305][510], blue);
    let svg = picture.to_svg();
    assert!(["1k", "2k", "4k"].iter().all(|tick| svg.contains(&format!(">{tick}</text>"))));
    let colored = pixels.iter().flatten().filter(|&&pixel| pixel == blue).count();
    assert!((500..20_000).contains(&colored), "{colored}");
}

#[test]
fn nothing_to_draw_and_too_much_are_told_apart() {
    let axis = || Axis::plain("x");
    let empty = Curves { title: String::new(), x: axis(), y: axis(), series: Vec::new() };
    assert!(empty.picture().to_png().is_ok());
    let huge = map(vec![vec![Some(0.5); 2]; 3_000]);
    let error = huge.to_png().unwrap_err().to_string();
    assert!(error.ends_with("pixels is too large"), "{error}");
}
