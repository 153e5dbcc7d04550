package millrace.spark.http;

import java.io.IOException;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import millrace.spark.common.Bounds;

/** Puts the body of an answer into memory that was touched before, if it fits there. */
final class RoomBody implements HttpResponse.BodySubscriber<RoomBody.Filled> {
    record Filled(byte[] bytes, int length) {}

    private final CompletableFuture<Filled> done = new CompletableFuture<>();
    private final Moving moving;
    private final long most;
    private byte[] bytes;
    private int length;

    RoomBody(HttpResponse.ResponseInfo info, byte[] room, Moving moving) {
        long size = info.headers().firstValueAsLong("Content-Length").orElse(-1);
        this.moving = moving;
        if (size > Bounds.ANSWER_BYTES) {
            done.completeExceptionally(new IOException("an answer of " + size + " bytes is too large"));
            size = 0;
        }
        most = size < 0 ? Bounds.ANSWER_BYTES : size;
        boolean hasRoom = room != null && size >= 0 && size <= room.length;
        bytes = hasRoom ? room : new byte[(int) Math.max(size, 0)];
        moving.now();
    }

    @Override
    public CompletionStage<Filled> getBody() {
        return done;
    }

    @Override
    public void onSubscribe(Flow.Subscription subscription) {
        subscription.request(Long.MAX_VALUE);
    }

    @Override
    public void onNext(List<ByteBuffer> buffers) {
        moving.take(() -> buffers.forEach(this::add));
    }

    private void add(ByteBuffer buffer) {
        int count = buffer.remaining();
        if ((long) length + count > most) {
            done.completeExceptionally(new IOException("an answer is longer than it says, or too large"));
            return;
        }
        if (length + count > bytes.length) {
            bytes = Arrays.copyOf(bytes, (int) Math.min(most, Math.max(2L * bytes.length, length + count)));
        }
        buffer.get(bytes, length, count);
        length += count;
    }

    @Override
    public void onError(Throwable error) {
        done.completeExceptionally(error);
    }

    @Override
    public void onComplete() {
        done.complete(new Filled(bytes, length));
    }
}
