//! Both formats show the same shapes, where they were asked for.

use annulus_figure::{Axis, Bar, Bars, Curves, Heatmap, Picture, Point, Series, color, thinned};

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
    let series = vec![Series { name: "loss".to_owned(), points, ..Series::default() }];
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

#[test]
fn a_picture_within_a_page_names_no_address() {
    let bar = Bar { name: "<a>".into(), value: 1.0, mark: None, text: "1".into(), color: 0 };
    let picture = Bars { title: "t".into(), x: "x".into(), rows: vec![bar] }.picture();
    let (file, inline) = (picture.to_svg(), picture.to_inline_svg());
    assert!(file.contains("http") && !inline.contains("http") && inline.contains("&lt;a&gt;"));
    assert_eq!(file.replace(" xmlns=\"http://www.w3.org/2000/svg\"", ""), inline);
}

#[test]
fn of_two_curves_of_one_color_the_second_is_dashed_in_both_formats() {
    let flat = |y: f64| vec![Point { x: 0.0, y, error: 0.0 }, Point { x: 1.0, y, error: 0.0 }];
    let first = Series { name: "a".into(), points: flat(1.0), ..Series::default() };
    let second = Series { points: flat(2.0), color: Some(0), dashed: true, ..Series::default() };
    let (x, y) = (Axis::plain("x"), Axis::plain("y"));
    let picture = Curves { title: String::new(), x, y, series: vec![first, second] }.picture();
    let svg = picture.to_inline_svg();
    // Both curves and the line of the only name.
    assert_eq!(svg.matches(&format!("stroke=\"{}\"", color(0))).count(), 3, "{svg}");
    assert_eq!((svg.matches("stroke-dasharray").count(), svg.matches(">a</text>").count()), (1, 1));
    let colored = |row: &Vec<[u8; 3]>| row.iter().filter(|&&p| p == [0x00, 0x72, 0xb2]).count();
    let mut rows: Vec<usize> = pixels(&picture).iter().map(colored).collect();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    // The longest rows of pixels are of the whole line; those of the dashed one are little more than half of it.
    assert!(rows.iter().any(|&count| (300..600).contains(&count)) && rows[0] > 700, "{rows:?}");
}

#[test]
fn what_is_no_number_is_not_drawn() {
    let no_numbers = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let bar = |value, mark| {
        let [name, text] = ["a", "b"].map(str::to_owned);
        Bar { name, value, mark, text, color: 0 }
    };
    let rows = no_numbers.iter().flat_map(|&no| [bar(no, Some(1.0)), bar(2.0, Some(no))]).collect();
    let bars = Bars { title: String::new(), x: String::new(), rows }.picture();
    let points = |errors: &[f64]| {
        let point = |(at, error): (usize, &f64)| Point { x: at as f64, y: 1.0, error: *error };
        errors.iter().enumerate().map(point).collect()
    };
    let curves = |y, errors: &[f64]| {
        let series = vec![Series { points: points(errors), ..Series::default() }];
        Curves { title: String::new(), x: Axis::plain("s"), y, series }.picture()
    };
    // Of the second error only the upper end has a place.
    let logarithmic = curves(Axis::logarithmic("l"), &[0.5, 2.0]);
    let cells = map(vec![no_numbers.map(Some).to_vec()]);
    for picture in [bars, curves(Axis::plain("l"), &no_numbers), logarithmic, cells] {
        let svg = picture.to_svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(picture.to_png().is_ok());
    }
}

#[test]
fn many_points_become_the_means_of_neighbours() {
    let points: Vec<Point> =
        (0..10).map(|n| Point { x: f64::from(n), y: f64::from(n * n), error: 1.0 }).collect();
    assert_eq!(thinned(&points, 10), (points.clone(), 1));
    let (found, together) = thinned(&points, 4);
    assert_eq!((found.len(), together), (4, 3));
    assert_eq!((found[0].x, found[0].y, found[3].y), (1.0, 5.0 / 3.0, 81.0));
}

/// XML has no such characters, not even as references.
#[test]
fn words_from_outside_are_escaped() {
    let title = "run <\u{1b}[31m\u{202e}\u{ffff}> & more".to_owned();
    let series = Series { name: "a\u{0}".to_owned(), points: Vec::new(), ..Series::default() };
    let (x, y) = (Axis::plain("step"), Axis::plain("loss"));
    let svg = Curves { title, x, y, series: vec![series] }.picture().to_svg();
    assert!(svg.contains("run &lt;\\u001b[31m\\u202e\\uffff&gt; &amp; more"), "{svg}");
    let allowed = |letter: char| letter == '\n' || !letter.is_control() && letter != '\u{202e}';
    assert!(svg.chars().all(allowed), "{svg}");
}
