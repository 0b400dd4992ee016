//! Numbers with units.

use annulus_yaml::Unit;

#[test]
fn units_are_read() {
    assert_eq!(Unit::Bytes.parse("80GB"), Some(80e9));
    assert_eq!(Unit::Bytes.parse("80 GiB"), Some(80.0 * 1_073_741_824.0));
    assert_eq!(Unit::Bytes.parse("4096"), Some(4096.0));
    assert_eq!(Unit::Bandwidth.parse("100Gbit/s"), Some(12.5e9));
    assert_eq!(Unit::Bandwidth.parse("1.5TB/s"), Some(1.5e12));
    assert_eq!(Unit::Speed.parse("312TFLOP/s"), Some(312e12));
    assert_eq!(Unit::Time.parse("0"), Some(0.0));
    assert_eq!(Unit::Time.parse("5us"), Some(5.0 * 1e-6));
    assert_eq!(Unit::Time.parse("10min"), Some(600.0));
    assert_eq!(Unit::Time.parse("2h"), Some(7200.0));
    assert_eq!(Unit::Bytes.parse("80gb"), Some(80e9));
    assert_eq!(Unit::Bytes.count("1.5G"), Some(3 << 29));
    assert_eq!(Unit::Bytes.count("64kb"), Some(64_000));
    assert_eq!(
        Unit::Bytes.count("79.2GiB"),
        Some(85_040_352_460),
        "a fraction of a byte is dropped"
    );
    assert_eq!(Unit::Bytes.count("0.5B"), None);
    assert_eq!(Unit::Tokens.hint("0.1k"), None, "nothing is meant but what is written");
    assert_eq!(Unit::Tokens.count("64K"), Some(65_536));
    assert_eq!(Unit::Tokens.count("0.1k"), None, "no whole number");
    assert_eq!(Unit::Tokens.count("64kB"), None);
    assert_eq!(Unit::Bandwidth.parse("50"), None);
    assert_eq!(Unit::Bandwidth.parse("50gb/s"), None, "bits or bytes?");
}

#[test]
fn the_largest_is_hinted_at() {
    let hint = |unit: Unit, text| unit.hint(text).unwrap_or_default();
    for (unit, over, largest) in [
        (Unit::Bytes, "9008TB", "8192TiB"),
        (Unit::Bandwidth, "1e300GB/s", "1e18TB/s"),
        (Unit::Speed, "1e31", "1e15PFLOP/s"),
        (Unit::Time, "1e300d", "1e30s"),
    ] {
        assert_eq!(hint(unit, over), format!("the largest is `{largest}`"));
        assert!(unit.parse(largest).is_some() && unit.parse(over).is_none(), "{largest}");
    }
    assert_eq!(Unit::Bytes.count("8192TiB"), Some(1 << 53));
}

#[test]
fn a_nearly_right_unit_is_hinted_at() {
    let hint = |unit: Unit, text| unit.hint(text).unwrap_or_default();
    assert_eq!(hint(Unit::Bandwidth, "50"), "bytes per second need a unit, such as `50GB/s`");
    assert_eq!(hint(Unit::Bandwidth, "450GB"), "did you mean `450GB/s`?");
    assert_eq!(hint(Unit::Bandwidth, "100Gb/s"), "did you mean `100Gbit/s`?");
    assert_eq!(hint(Unit::Bandwidth, "100Gbps"), "did you mean `100Gbit/s`?");
    assert_eq!(hint(Unit::Bandwidth, "100G"), "did you mean `100GB/s`?");
    assert_eq!(hint(Unit::Speed, "312TFLOPS"), "did you mean `312TFLOP/s`?");
    assert_eq!(hint(Unit::Time, "5 secs"), "did you mean `5s`?");
    assert_eq!(hint(Unit::Time, "2 hours"), "did you mean `2h`?");
    assert_eq!(hint(Unit::Time, "2 lustra"), "");
    assert_eq!(hint(Unit::Speed, "fast"), "");
    assert_eq!(Unit::Speed.parse("0"), None);
    assert_eq!(Unit::Speed.parse("-1TFLOP/s"), None);
    assert_eq!(Unit::Bandwidth.parse("1e300GB/s"), None);
    assert_eq!((Unit::Speed.parse("0.9FLOP/s"), Unit::Bandwidth.parse("1e-300B/s")), (None, None));
    assert_eq!([Unit::Speed.parse("1"), Unit::Bandwidth.parse("1B/s")], [Some(1.0); 2]);
}
