// One row of masked_sample, by docs/sampling_contract.md. Included by masked_sample.cpp once for each set of vector
// instructions, inside a namespace of its own: so it has no include guard and includes nothing.
//
// Rows that allow few tokens become a list of candidates at once. Longer rows are cut into blocks of 64 tokens; one
// scan gives the largest logit of each block, and from then on a block is looked at again only if its largest logit
// matters. Filters keep the tokens whose logit reaches some threshold, so a filter is a number here, and what top-k
// leaves is a list again.

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// 16 lanes, which the compiler spreads over registers of whatever width there is.
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));

inline Floats load_16(const float* x) {
  Floats lanes;
  memcpy(&lanes, x, sizeof(lanes));
  return lanes;
}

inline Floats widen_16(const float* x) { return load_16(x); }

inline Words zero_extended_16(const void* halves) {
  uint16_t lanes __attribute__((vector_size(32)));
  memcpy(&lanes, halves, sizeof(lanes));
  return __builtin_convertvector(lanes, Words);
}

inline Floats widen_16(const BFloat16* x) { return (Floats)(zero_extended_16(x) << 16); }

// As widen of one.
inline Floats widen_16(const Half* x) {
  const Words bits = zero_extended_16(x);
  const Words magnitude = bits & 0x7fffu;
  const Floats scaled = (Floats)(magnitude << 13) * 0x1p112f;
  const Words is_huge = (Words)(magnitude >= 0x7c00u);
  const Words widened = (is_huge & ((magnitude << 13) | 0x7f800000u)) | (~is_huge & (Words)scaled);
  return (Floats)(widened | (bits & 0x8000u) << 16);
}

inline Floats larger_of(Floats a, Floats b) { return a > b ? a : b; }

inline float largest_of(Floats lanes) {
  float largest = lanes[0];
  for (int i = 1; i < 16; ++i) largest = std::max(largest, static_cast<float>(lanes[i]));
  return largest;
}

// Of a multiple of 16 logits.
inline Scan scan_all(const float* x, int64_t count) {
  Floats highest = Floats{} + kLowest;
  Ints is_nan = {};
  for (int64_t first = 0; first < count; first += 16) {
    const Floats here = load_16(x + first);
    is_nan |= here != here;
    highest = larger_of(here, highest);
  }
  Scan found;
  found.highest = largest_of(highest);
  for (int i = 0; i < 16; ++i) found.has_nan |= is_nan[i] != 0;
  return found;
}

inline int64_t total_mass(const Scale& scale, const float* x, int64_t count) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += mass(scale.t(x[i]));
  return total;
}

// Tokens of this z with more noise bits than this cannot beat `best`; 0 if none can. Few bits are much noise: g of U is
// at most -log(U / 2^32), and at most 22.874. The margins cover the rounding of z, g and their sum, and of exp_float.
inline uint32_t noise_that_can_win(float best, float z) {
  constexpr float kMostNoise = 22.9f;
  if (z == -std::numeric_limits<float>::infinity()) return 0;
  const float gap = best - z - (4e-6f + std::fabs(z) * 0x1p-22f);
  if (!(gap > 0)) return ~0u;
  if (gap > kMostNoise) return 0;
  const double bound = static_cast<double>(exp_float(-gap)) * 4294967296.0 * 1.0001 + 2.0;
  return bound >= 4294967295.0 ? ~0u : static_cast<uint32_t>(bound);
}

// Of the first equal to `wanted`, which is there.
inline int64_t index_of(float wanted, const float* x) {
  int64_t first = 0;
  while (largest_of(load_16(x + first)) < wanted) first += 16;
  return std::find(x + first, x + first + 16, wanted) - x;
}

inline Winner challenge_alone(const Scale& scale, const RowSettings& settings, int64_t token, float x) {
  Winner winner;
  winner.challenge(scale.z(x) + gumbel(noise_bits(settings.seed, settings.position, token)), token, x);
  return winner;
}

inline Winner draw_from(const Candidates& candidates, const Scale& scale, const Kept& kept,
                        const RowSettings& settings) {
  // Any order of visits gives the same winner. The likeliest first: it rules out most of the others.
  const int64_t likeliest = index_of(scale.highest, candidates.x.data());
  Winner best = challenge_alone(scale, settings, candidates.tokens[likeliest], scale.highest);
  for (int64_t first = 0; first < candidates.count; first += 16) {
    const int32_t* tokens = candidates.tokens.data() + first;
    const float* x = candidates.x.data() + first;
    const float highest = largest_of(load_16(x));
    if (!kept.has(scale, highest)) continue;
    const uint32_t bound = noise_that_can_win(best.score, scale.z(highest));
    if (bound == 0) continue;
    alignas(64) uint32_t bits[16];
    noise_of_16(settings.seed, settings.position, tokens, bits);
    for (uint32_t left = lanes_at_most(bits, bound); left != 0; left &= left - 1) {
      const int i = __builtin_ctz(left);
      if (kept.has(scale, x[i])) best.challenge(scale.z(x[i]) + gumbel(bits[i]), tokens[i], x[i]);
    }
  }
  return best;
}

template <class T>
class RowSampler {
 public:
  RowSampler(const MaskedSampleParams& params, int64_t row, Workspace& workspace, const Team& team)
      : logits_(static_cast<const T*>(params.logits) + row * params.row_stride),
        vocab_size_(params.vocab_size),
        num_blocks_((params.vocab_size + kBlock - 1) / kBlock),
        mask_(params.has_mask ? mask_row(params.bitmask, params.rows, row) : MaskRow{nullptr, 0, true}),
        settings_(row_settings(params, row)),
        workspace_(workspace),
        team_(team) {}

  Drawn sample(bool wants_logprob) {
    if (!settings_.are_valid) return {};
    return list_if_few() ? sample_listed(wants_logprob) : sample_dense(wants_logprob);
  }

 private:
  // -- few tokens -----------------------------------------------------------------------------------------------------

  // Makes the allowed tokens the candidates, if they are few: a list costs one Philox a token, a block of 64 one for
  // four tokens whether they are allowed or not.
  bool list_if_few() {
    if (mask_.is_free) return false;
    const int64_t limit = std::min(kFewTokens, vocab_size_ / 8);
    Candidates& all = workspace_.candidates;
    all.clear(limit + kBitsPerWord);
    int32_t* const tokens = all.tokens.data();
    int64_t count = 0;
    for_each_nonzero(mask_.words, num_mask_words(), [&](int64_t i, uint32_t word) {
      const int64_t left_in_row = vocab_size_ - i * kBitsPerWord;
      if (left_in_row < kBitsPerWord) word &= (1u << left_in_row) - 1;
      for (; word != 0; word &= word - 1)
        tokens[count++] = static_cast<int32_t>(i * kBitsPerWord) + __builtin_ctz(word);
      return count <= limit;
    });
    if (count > limit) return false;
    for (int64_t i = 0; i < count; ++i) all.x[i] = widen(logits_[tokens[i]]);
    all.count = count;
    all.fill_up();
    return true;
  }

  Drawn sample_listed(bool wants_logprob) {
    Candidates& all = workspace_.candidates;
    const auto [has_nan, highest] = scan_all(all.x.data(), all.count);
    if (has_nan || highest == kLowest) return {};
    const Scale scale(settings_.temperature, highest);
    const int64_t total = wants_logprob ? total_mass(scale, all.x.data(), all.count) : 0;
    if (settings_.is_greedy()) {
      return {all.tokens[index_of(highest, all.x.data())], logprob(scale, highest, total)};
    }
    Kept kept = settings_.kept_by_min_p();
    if (settings_.has_top_k_or_top_p()) kept = filter(all, scale, kept);
    const Winner winner = draw_from(all, scale, kept, settings_);
    return {winner.token, logprob(scale, winner.x, total)};
  }

  // -- many tokens ----------------------------------------------------------------------------------------------------

  Drawn sample_dense(bool wants_logprob) {
    workspace_.block_maxima.resize(num_blocks_);
    const Scan scanned =
        team_.reduce<Scan>(num_blocks_, [this](int64_t begin, int64_t end) { return scan(begin, end); });
    if (scanned.has_nan || scanned.highest == kLowest) return {};
    const Scale scale(settings_.temperature, scanned.highest);
    const int64_t total = wants_logprob ? dense_mass(scale) : 0;
    if (settings_.is_greedy()) return {first_equal_to(scanned.highest), logprob(scale, scanned.highest, total)};

    Kept kept = settings_.kept_by_min_p();
    if (settings_.top_k > 0) {
      Candidates& candidates = workspace_.candidates;
      gather(lower_bound_of_top_k(), candidates);
      kept = filter(candidates, scale, kept);
      // Noise comes four tokens at a time from a block, one at a time from a list.
      if (candidates.count < vocab_size_ / 4) {
        const Winner winner = draw_from(candidates, scale, kept, settings_);
        return {winner.token, logprob(scale, winner.x, total)};
      }
    } else if (settings_.top_p < 1) {
      kept.at_least = top_p_threshold(scale, kept, [this](const auto& visit) {
        for (int64_t block = 0; block < num_blocks_; ++block) {
          const float highest = workspace_.block_maxima[block];
          if (highest == kLowest) continue;
          alignas(64) float x[kBlock];
          load(block, allowed_in(block), x);
          visit(x, kBlock, highest);
        }
      });
    }
    const Winner likeliest = challenge_alone(scale, settings_, first_equal_to(scale.highest), scale.highest);
    const Winner winner = team_.reduce<Winner>(
        num_blocks_, [&](int64_t begin, int64_t end) { return draw(scale, kept, likeliest, begin, end); });
    return {winner.token, logprob(scale, winner.x, total)};
  }

  Scan scan(int64_t begin, int64_t end) {
    Scan found;
    for (int64_t block = begin; block < end; ++block) {
      workspace_.block_maxima[block] = kLowest;
      const uint64_t allowed = allowed_in(block);
      if (allowed == 0) continue;
      alignas(64) float x[kBlock];
      load(block, allowed, x);
      const Scan here = scan_all(x, kBlock);
      workspace_.block_maxima[block] = here.highest;
      found += here;
    }
    return found;
  }

  int64_t dense_mass(const Scale& scale) {
    return team_.reduce<int64_t>(num_blocks_, [&](int64_t begin, int64_t end) {
      int64_t total = 0;
      for (int64_t block = begin; block < end; ++block) {
        if (mass(scale.t(workspace_.block_maxima[block])) == 0) continue;  // and so are the lesser ones
        alignas(64) float x[kBlock];
        load(block, allowed_in(block), x);
        total += total_mass(scale, x, kBlock);
      }
      return total;
    });
  }

  int64_t first_equal_to(float highest) const {
    int64_t block = 0;
    while (workspace_.block_maxima[block] != highest) ++block;
    alignas(64) float x[kBlock];
    load(block, allowed_in(block), x);
    return block * kBlock + (std::find(x, x + kBlock, highest) - x);
  }

  // k blocks whose largest logits reach it hold at least k tokens that do.
  float lower_bound_of_top_k() {
    if (settings_.top_k <= 0 || settings_.top_k > num_blocks_) return kLowest;
    std::vector<float>& maxima = workspace_.sorted;
    maxima = workspace_.block_maxima;
    const auto kth = maxima.begin() + (settings_.top_k - 1);
    std::nth_element(maxima.begin(), kth, maxima.end(), std::greater<float>());
    return *kth;
  }

  void gather(float at_least, Candidates& out) const {
    out.clear(vocab_size_);
    for (int64_t block = 0; block < num_blocks_; ++block) {
      const float highest = workspace_.block_maxima[block];
      if (highest < at_least || highest == kLowest) continue;
      for (uint64_t left = allowed_in(block); left != 0; left &= left - 1) {
        const int64_t token = block * kBlock + __builtin_ctzll(left);
        const float x = widen(logits_[token]);
        if (x >= at_least && x > kLowest) out.push(token, x);
      }
    }
    out.fill_up();
  }

  // `best` so far: any order of visits gives the same winner, so blocks are ruled out by it.
  Winner draw(const Scale& scale, const Kept& kept, Winner best, int64_t begin, int64_t end) const {
    for (int64_t block = begin; block < end; ++block) {
      const float highest = workspace_.block_maxima[block];
      if (!kept.has(scale, highest)) continue;
      const uint32_t bound = noise_that_can_win(best.score, scale.z(highest));
      if (bound == 0) continue;
      const NoiseBlock noise = noise_of_block(settings_.seed, settings_.position, block);
      for (uint64_t left = noise.at_most(bound) & allowed_in(block); left != 0; left &= left - 1) {
        const int i = __builtin_ctzll(left);
        const float x = widen(logits_[block * kBlock + i]);
        if (x > kLowest && kept.has(scale, x)) best.challenge(scale.z(x) + gumbel(noise.of(i)), block * kBlock + i, x);
      }
    }
    return best;
  }

  // -- filters --------------------------------------------------------------------------------------------------------

  // Leaves in `candidates` what min_p, top_k and top_p keep of it; the threshold says the same of any token of the row.
  Kept filter(Candidates& candidates, const Scale& scale, Kept kept) {
    candidates.keep(scale, kept);
    const int64_t count = candidates.count;
    if (0 < settings_.top_k && settings_.top_k < count) {
      std::vector<float>& x = workspace_.sorted;
      x.assign(candidates.x.begin(), candidates.x.begin() + count);
      const auto kth = x.begin() + (settings_.top_k - 1);
      std::nth_element(x.begin(), kth, x.end(), std::greater<float>());
      kept.at_least = *kth;
      candidates.keep(scale, kept);
    } else if (settings_.top_k > 0) {
      kept.at_least = *std::min_element(candidates.x.begin(), candidates.x.begin() + count);
    }
    if (settings_.top_p < 1) {
      kept.at_least = top_p_threshold(scale, kept, [&](const auto& visit) {
        const int64_t count = candidates.count;
        for (int64_t first = 0; first < count; first += kBlock) {
          const float* x = candidates.x.data() + first;
          const int64_t here = std::min(kBlock, count - first);
          visit(x, here, scan_all(x, here + 15 & ~15).highest);
        }
      });
      candidates.keep(scale, kept);
    }
    return kept;
  }

  // The largest logit such that it and all kept ones above it have the mass that top_p asks for. `for_each` shows its
  // visitor all logits, up to 64 at a time with the largest of them.
  template <class ForEach>
  float top_p_threshold(const Scale& scale, const Kept& kept, const ForEach& for_each) {
    // Bins of t from the top down, then the logits of the one bin in which the mass reaches the target.
    constexpr int kBins = 2048;
    constexpr float kBinsPerUnit = kBins / 30.0f;  // below t = -30 there is no mass
    const auto bin_of = [](float t) { return static_cast<int32_t>(std::min(-t * kBinsPerUnit, kBins - 1.0f)); };
    int64_t mass_of_bin[kBins] = {};
    for_each([&](const float* x, int64_t count, float highest) {
      if (mass(scale.t(highest)) == 0) return;
      int32_t bins[kBlock];
      int64_t masses[kBlock];
      for (int64_t i = 0; i < count; ++i) {
        const float t = scale.t(x[i]);
        bins[i] = bin_of(t);
        masses[i] = t >= kept.t_at_least ? mass(t) : 0;
      }
      for (int64_t i = 0; i < count; ++i) mass_of_bin[bins[i]] += masses[i];
    });
    const int64_t total = std::accumulate(mass_of_bin, mass_of_bin + kBins, int64_t{0});
    const float wanted = settings_.top_p * static_cast<float>(total);
    const int64_t target = std::min(total, std::max<int64_t>(1, static_cast<int64_t>(wanted)));
    int64_t reached = 0;
    int32_t bin = 0;
    while (reached + mass_of_bin[bin] < target) reached += mass_of_bin[bin++];

    std::vector<float>& of_bin = workspace_.sorted;
    of_bin.clear();
    for_each([&](const float* x, int64_t count, float highest) {
      if (bin_of(scale.t(highest)) > bin) return;
      int32_t bins[kBlock];
      int32_t num_here = 0;
      for (int64_t i = 0; i < count; ++i) {
        bins[i] = bin_of(scale.t(x[i]));
        num_here += bins[i] == bin;
      }
      if (num_here == 0) return;
      for (int64_t i = 0; i < count; ++i) {
        if (bins[i] == bin && kept.has(scale, x[i])) of_bin.push_back(x[i]);
      }
    });
    std::sort(of_bin.begin(), of_bin.end(), std::greater<float>());
    size_t i = 0;
    for (reached += mass(scale.t(of_bin[0])); reached < target; reached += mass(scale.t(of_bin[i]))) ++i;
    return of_bin[i];
  }

  // -- the row --------------------------------------------------------------------------------------------------------

  int64_t num_mask_words() const { return std::min(mask_.num_words, words_for(vocab_size_)); }

  // Bit i: token i of the block may be drawn.
  uint64_t allowed_in(int64_t block) const {
    uint64_t allowed = ~uint64_t{0};
    if (!mask_.is_free) allowed = mask_.two_words(2 * block);
    const int64_t left = vocab_size_ - block * kBlock;
    return left >= kBlock ? allowed : allowed & ((uint64_t{1} << left) - 1);
  }

  // 64 logits widened to float32, -inf where not allowed.
  void load(int64_t block, uint64_t allowed, float* x) const {
    const T* from = logits_ + block * kBlock;
    if (vocab_size_ - block * kBlock < kBlock) {
      for (int i = 0; i < kBlock; ++i) x[i] = allowed >> i & 1 ? widen(from[i]) : kLowest;
      return;
    }
    for (int first = 0; first < kBlock; first += 16) {
      const Words bit_of_lane = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
      const Words bits = Words{} + static_cast<uint32_t>(allowed >> first & 0xffff);
      const Floats lanes = (bits & bit_of_lane) != 0 ? widen_16(from + first) : Floats{} + kLowest;
      memcpy(x + first, &lanes, sizeof(lanes));
    }
  }

  const T* logits_;
  int64_t vocab_size_;
  int64_t num_blocks_;
  MaskRow mask_;
  RowSettings settings_;
  Workspace& workspace_;
  const Team& team_;
};

inline Drawn sample_row(const MaskedSampleParams& params, int64_t row, Workspace& workspace, const Team& team) {
  const bool wants_logprob = params.logprobs != nullptr;
  switch (params.format) {
    case FloatFormat::kFloat32:
      return RowSampler<float>(params, row, workspace, team).sample(wants_logprob);
    case FloatFormat::kFloat16:
      return RowSampler<Half>(params, row, workspace, team).sample(wants_logprob);
    default:
      return RowSampler<BFloat16>(params, row, workspace, team).sample(wants_logprob);
  }
}
