import java.util.Locale;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Pulsar's own Java client publishing at full speed, in batches of 64 KB that wait for 5 ms at most.
 *
 * <p>URL TOPIC MESSAGE_BYTES WARM_S SECONDS. What is counted is acked between the two. The last line
 * is a JSON object.
 */
public final class PulsarBatches {
    private PulsarBatches() {}

    public static void main(String[] words) {
        int code = 0;
        try {
            System.out.println(measured(words));
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            String[] said = String.valueOf(cause).split("\n"); // its first line is to be the last
            System.err.println(String.valueOf(error.getMessage()).split("\n")[0] + ": " + said[0]);
            code = 1;
        }
        System.out.flush();
        System.err.flush();
        Runtime.getRuntime().halt(code); // before anybody logs a line after it
    }

    private static String measured(String[] words) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).build();
        Producer<byte[]> producer =
                client.newProducer()
                        .topic(words[1])
                        .enableBatching(true)
                        .batcherBuilder(BatcherBuilder.DEFAULT)
                        .batchingMaxBytes(65_536)
                        .batchingMaxMessages(100_000)
                        .batchingMaxPublishDelay(5, TimeUnit.MILLISECONDS)
                        .blockIfQueueFull(true)
                        .create();
        byte[] value = new byte[Integer.parseInt(words[2])];
        LongAdder acked = new LongAdder();
        AtomicReference<Throwable> failed = new AtomicReference<>();
        long begin = System.nanoTime() + seconds(words[3]);
        long end = begin + seconds(words[4]);
        long before = -1;
        long began = begin;
        long sent = 0;
        for (long now = System.nanoTime(); now < end && failed.get() == null;
                now = System.nanoTime()) {
            if (before < 0 && now >= begin) {
                before = acked.sum();
                began = now;
            }
            producer.sendAsync(value)
                    .whenComplete(
                            (id, error) -> {
                                if (error != null) {
                                    failed.compareAndSet(null, error);
                                }
                                acked.increment();
                            });
            sent++;
        }
        double took = (System.nanoTime() - began) / 1e9;
        long counted = acked.sum() - before;
        producer.flush();
        if (failed.get() != null) {
            throw new IllegalStateException("a message was refused", failed.get());
        }
        return String.format(Locale.ROOT, "{\"acked\": %d, \"per_s\": %d}", sent,
                Math.round(counted / took));
    }

    private static long seconds(String word) {
        return Math.round(Double.parseDouble(word) * 1e9);
    }
}
