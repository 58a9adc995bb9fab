/* daemon/worker/check/closed.h: closed forms of the polynomial papers' norms.
 *
 * X (N, D) has entries N(0, sigma_x^2), Q and K (D, d) entries N(0, sigma_t^2), all independent; powers are
 * elementwise. Given X, the entries of XQ and XK are independent Gaussians with variance sigma_t^2 |x_i|^2; the exact
 * moments below follow (theorems 4.2 and 4.3; the papers give the leading term in N). */
#pragma once

struct check_shape {
    double n, width, head; /* N, D, d */
    double sigma_x, sigma_t;
};

/* (2p-1)!! = 1 3 5 .. (2p-1); 1 for p = 0. */
double check_odd_factorial(int p);
/* p!! */
double check_double_factorial(int p);
/* m (m+2) .. (m+2p-2) = E |g|^(2p), g of N(0, I_m); 1 for p = 0. */
double check_rising(int p, double m);

/* E (|g| / sqrt m)^r, g of N(0, I_m): 1 but for terms of order 1/m. */
double check_radius_moment(double m, double r);
/* E |(X Q K^T X^T / sqrt d)_ij|^r, mean over i and j, over that of a Gaussian of deviation D sigma_x^2 sigma_t^2. */
double check_logit_moment(const struct check_shape *s, double r);
/* E ||(X Q K^T X^T / sqrt d)^p||_F^2 */
double check_power_square(const struct check_shape *s, int p);
/* Square root of its leading term in N: N sqrt((2p-1)!!) D^p (sigma_x sigma_t)^(2p). */
double check_power_leading(const struct check_shape *s, int p);
/* E ||d (X Q K^T X^T)^p / dQ||_F^2, without a factor 1/sqrt d. */
double check_gradient_square(const struct check_shape *s, int p);
