# The losses of tables E.1 and E.3, by name. Source this file; `loss_options NAME` sets LOSS.
#
#   mle                       maximum likelihood
#   mle-entropy               with entropy regularisation, MLE + gamma H
#   tok  tok-freq             token-level smoothing; with promotion of rare tokens
#   seq-REWARD-CHOICES        sequence level: hamming, bleu or cider; all, batch or refs
#   lazy-REWARD-CHOICES       the same, conditioned on the reference prefix
#   both-REWARD-CHOICES       tok-freq and seq combined
#   twice                     seq-hamming-batch at a temperature that samples only the reference: isolates
#                             the gain of a second pass with another dropout mask, without smoothing
#
# To add a loss of your own, put its options in LOSS_name (with _ for -).
# TOKEN_ALPHA, TOKEN_TEMPERATURE, RARITY, SEQUENCE_ALPHA, TEMPERATURE, SAMPLES (L; BLEU and CIDEr
# need two), ENTROPY and VECTORS (see `smoothing.token.vectors`) are parameters that the papers
# tuned on validation data and do not report. With the Hamming reward, a token is replaced
# with odds of exp(-1 / TEMPERATURE), a chance of 6 % at 0.37, whatever the substitutes.
# NEIGHBOURS=100 spreads a token's share over the hundred nearest types only, not over all (0).
loss_options() {
    local own="LOSS_${1//-/_}" level reward choices samples
    local token=(--set "smoothing.token.alpha=${TOKEN_ALPHA:-0.1}"
        --set "smoothing.token.temperature=${TOKEN_TEMPERATURE:-0.2}"
        --set "smoothing.token.neighbours=${NEIGHBOURS:-0}"
        --set "smoothing.token.vectors=${VECTORS:-own}")
    local rare=(--set "smoothing.token.rarity=${RARITY:-0.1}")
    LOSS=(--set objective.label_smoothing=0)
    if [ -n "${!own:-}" ]; then
        read -r -a LOSS <<<"${!own}"
        return
    fi
    case "$1" in
    mle) return ;;
    mle-entropy) LOSS+=(--set "smoothing.entropy=${ENTROPY:-0.1}"); return ;;
    tok) LOSS+=("${token[@]}"); return ;;
    tok-freq) LOSS+=("${token[@]}" "${rare[@]}"); return ;;
    twice) LOSS+=(--set "smoothing.sequence.alpha=${SEQUENCE_ALPHA:-0.3}"
        --set smoothing.sequence.vocabulary=batch --set smoothing.sequence.temperature=0.01); return ;;
    esac
    IFS=- read -r level reward choices <<<"$1"
    [[ "$1" =~ ^(seq|lazy|both)-(hamming|bleu|cider)-(all|batch|refs)$ ]] ||
        fail "there is no loss $1: see recipes/losses.sh, or set its options in $own"
    case "$choices" in refs) choices=references ;; esac
    if [ "$reward" = hamming ]; then samples="${SAMPLES:-1}"; else samples="${SAMPLES:-3}"; fi
    LOSS+=(--set "smoothing.sequence.alpha=${SEQUENCE_ALPHA:-0.3}"
        --set "smoothing.sequence.reward=$reward" --set "smoothing.sequence.vocabulary=$choices"
        --set "smoothing.sequence.temperature=${TEMPERATURE:-0.37}"
        --set "smoothing.sequence.samples=$samples")
    case "$level" in
    lazy) LOSS+=(--set smoothing.sequence.lazy=true) ;;
    both) LOSS+=("${token[@]}" "${rare[@]}") ;;
    esac
}

# `check_losses`: fail if LOSSES contains an unknown loss, or one twice.
check_losses() {
    local loss
    for loss in $LOSSES; do loss_options "$loss"; done
    no_repeats LOSSES
}

# `learn MODEL ARCH PRESET LOSS SEED`: train MODEL on $DATA, unless it exists, for $UPDATES updates or
# $MINUTES of processor time (both 0: the preset's limit), and translate $SPLIT with beam size
# $BEAM, unless that was done. Sets SCORES to the file of its scores.
learn() {
    local model="$1"
    loss_options "$4"
    train_model "$model" "$2" "$3" "$5" "$UPDATES" "$MINUTES" "${LOSS[@]}"
    translate "$model" "$SPLIT" "$BEAM"
}
