package millrace.spark.http;

import millrace.spark.common.Bounds;

/**
 * @param switchS how long a node may stay silent while another one is left to ask
 * @param answerS the same when no other is left
 * @param patienceS for how long the nodes are asked again when none has an answer
 */
public record Timeouts(double connectS, double switchS, double answerS, double patienceS) {
    public static Timeouts toRead(Double connectS, Double requestS) {
        return new Timeouts(Bounds.CONNECT_S, Bounds.READ_SWITCH_S, Bounds.READ_ANSWER_S, Bounds.READ_PATIENCE_S)
                .changed(connectS, requestS);
    }

    public static Timeouts toWrite(Double connectS, Double requestS, double patienceS) {
        return new Timeouts(Bounds.CONNECT_S, Bounds.WRITE_SWITCH_S, Bounds.WRITE_ANSWER_S, patienceS)
                .changed(connectS, requestS);
    }

    /** With the times that somebody chose; a chosen time for a request holds for the last node too. */
    private Timeouts changed(Double connect, Double request) {
        return new Timeouts(
                connect == null ? connectS : connect,
                request == null ? switchS : request,
                request == null ? answerS : request,
                patienceS);
    }

    TimeLimit limit() {
        return new TimeLimit(Math.min(switchS, answerS), answerS);
    }
}
