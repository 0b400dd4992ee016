// Sine and cosine of large angles, in f64: a position below 2^29 times an f32 frequency is exact.
#pragma once
#include "../vocabulary/numbers.h"

struct SineCosine {
  double sine;
  double cosine;
};

// Both to about 1e-11, for angles up to 2^31.
//
// The angle less the nearest multiple of pi / 2, taken in two parts whose products are exact but for 1e-23, lies within pi / 4,
// where the series of both converge at once. The multiple's two lowest bits say which of the two is which, and their signs.
DEVICE SineCosine sine_cosine(double angle) {
  constexpr double TWO_OVER_PI = 0.63661977236758134308, HALF_PI = 1.57079632679489661923;
  constexpr double HALF_PI_REST = 6.12323399573676588613e-17;   // of pi / 2, after its f64
  constexpr double ROUND = 6755399441055744.0;                  // 1.5 * 2^52: adding it rounds to an integer
  const double quadrants = (angle * TWO_OVER_PI + ROUND) - ROUND;
  const double x = fma(-quadrants, HALF_PI_REST, fma(-quadrants, HALF_PI, angle));
  const double square = x * x;
  double sine = fma(square, -1.0 / 39916800.0, 1.0 / 362880.0);
  sine = fma(square, sine, -1.0 / 5040.0);
  sine = fma(square, sine, 1.0 / 120.0);
  sine = fma(square, sine, -1.0 / 6.0);
  sine = fma(square * x, sine, x);
  double cosine = fma(square, 1.0 / 479001600.0, -1.0 / 3628800.0);
  cosine = fma(square, cosine, 1.0 / 40320.0);
  cosine = fma(square, cosine, -1.0 / 720.0);
  cosine = fma(square, cosine, 1.0 / 24.0);
  cosine = fma(square, cosine, -0.5);
  cosine = fma(square, cosine, 1.0);
  const int quadrant = static_cast<int>(static_cast<int64_t>(quadrants)) & 3;
  const double first = quadrant & 1 ? cosine : sine, second = quadrant & 1 ? sine : cosine;
  return {quadrant & 2 ? -first : first, (quadrant + 1) & 2 ? -second : second};
}
