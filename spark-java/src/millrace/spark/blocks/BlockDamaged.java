package millrace.spark.blocks;

import millrace.spark.common.LocalError;

/** These bytes are not a block, or not the one that was written. */
public final class BlockDamaged extends LocalError {
    private static final long serialVersionUID = 1L;

    public BlockDamaged(String reason) {
        super(reason);
    }
}
